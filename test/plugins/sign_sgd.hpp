#pragma once
// Sign descent: every element moves by the learning rate (Bernstein et al., "signSGD", ICML 2018).

#include <array>
#include <memory>
#include <string_view>
#include <tuple>

#include "base/options.hpp"
#include "optim/rule.hpp"

namespace gossamer {

struct SignRule {
  static constexpr RuleTraits<> kTraits = {};
  template <class T>
  struct Coefficients {
    T lr;
    T decay;
  };

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    return {static_cast<T>(update.lr), static_cast<T>(update.weight_decay)};
  }
  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T g, std::array<T, 0>&) {
    g += c.decay * p;
    p -= g > T(0) ? c.lr : (g < T(0) ? -c.lr : T(0));
  }
};

struct SignSgdRow {
  static constexpr std::string_view kName = "sign_sgd";
  static constexpr std::string_view kSummary = "steps of one size, by the sign of the gradient";
  static constexpr std::array<OptionEntry, 0> kOptions = {};  // what make() reads
  using Rules = std::tuple<SignRule>;                         // what make() may build

  template <class Build>
  static std::unique_ptr<Optimizer> make(const Options& /*options*/, const Build& build) {
    return build(SignRule{});
  }
};

}  // namespace gossamer
