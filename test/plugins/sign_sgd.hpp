#pragma once
// Sign descent: every element moves by the learning rate (Bernstein et al., "signSGD", ICML 2018).

#include <array>
#include <memory>

#include "base/options.hpp"
#include "optim/rule.hpp"

namespace gossamer {

struct SignRule {
  static constexpr int kNumStates = 0;  // blocks beside the parameters
  static constexpr std::array<std::string_view, 0> kStateNames = {};  // saved state goes by these
  static constexpr std::array kPhases = {Phase::kMiddle};             // all steps are alike
  template <class T>
  struct Coefficients {
    T lr;
    T decay;
  };

  static constexpr StateMask reads(Phase) { return 0; }
  static constexpr StateMask writes(Phase) { return 0; }
  [[nodiscard]] std::int64_t cycle() const { return 1; }
  [[nodiscard]] Phase phase(std::int64_t) const { return Phase::kMiddle; }
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

template <class Build>
std::unique_ptr<Optimizer> build_sign_sgd(const Options& /*options*/, const Build& build) {
  return build(SignRule{});
}

}  // namespace gossamer
