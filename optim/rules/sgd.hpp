#pragma once
// Stochastic gradient descent: plain, with momentum (Polyak, 1964), and with Nesterov's variant as
// PyTorch defines it (Sutskever et al., 2013). The first step sets the momentum buffer to the
// gradient itself.

#include <array>
#include <memory>
#include <string_view>
#include <tuple>

#include "base/options.hpp"
#include "optim/rule.hpp"

namespace gossamer {

template <class T>
struct SgdCoefficients {
  T lr;
  T decay;
  T momentum;
};

struct PlainRule {
  static constexpr RuleTraits<> kTraits = {.gradient_use = GradientUse::kLinear};
  template <class T>
  using Coefficients = SgdCoefficients<T>;

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    return {static_cast<T>(update.lr), static_cast<T>(update.weight_decay), T{0}};
  }

  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T g, std::array<T, 0>&) {
    p -= c.lr * (g + c.decay * p);
  }
};

template <bool kNesterov>
struct MomentumRule {
  static constexpr RuleTraits<1, 2> kTraits = {
      .state_names = {"momentum"},
      .phases = {Phase::kFirst, Phase::kMiddle},
      .reads = [](Phase phase) { return phase == Phase::kFirst ? 0U : 1U; },
      .gradient_use = GradientUse::kLinear};
  template <class T>
  using Coefficients = SgdCoefficients<T>;

  double momentum = 0.9;

  [[nodiscard]] std::int64_t cycle() const { return 1; }
  [[nodiscard]] Phase phase(std::int64_t step) const {
    return step == 1 ? Phase::kFirst : Phase::kMiddle;
  }

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    return {static_cast<T>(update.lr), static_cast<T>(update.weight_decay),
            static_cast<T>(momentum)};
  }

  template <class T, Phase kPhase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T g,
                                         std::array<T, 1>& state) {
    g += c.decay * p;
    state[0] = kPhase == Phase::kFirst ? g : c.momentum * state[0] + g;
    p -= c.lr * (kNesterov ? g + c.momentum * state[0] : state[0]);
  }
};

inline constexpr NumberOption kSgdMomentum{
    "momentum",
    "part of the last step that is taken again",
    {.fallback = 0.0, .min = 0.0, .max = 1.0, .below_max = true}};
inline constexpr FlagOption kSgdNesterov{"nesterov", "Nesterov's variant, needs momentum"};

struct SgdRow {
  static constexpr std::string_view kName = "sgd";
  static constexpr std::string_view kSummary =
      "gradient descent with momentum or Nesterov momentum";
  static constexpr std::array kOptions = option_list(kSgdMomentum, kSgdNesterov);
  using Rules = std::tuple<PlainRule, MomentumRule<false>, MomentumRule<true>>;

  template <class Build>
  static std::unique_ptr<Optimizer> make(const Options& options, const Build& build) {
    const double momentum = options.read(kSgdMomentum);
    const bool nesterov = options.read(kSgdNesterov);
    if (nesterov && momentum == 0.0) {
      options.fail("nesterov", "needs momentum, allowed: true with optimizer.momentum > 0");
    }
    if (momentum == 0.0) return build(PlainRule{});
    if (nesterov) return build(MomentumRule<true>{momentum});
    return build(MomentumRule<false>{momentum});
  }
};

}  // namespace gossamer
