#pragma once
// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023), with decoupled
// weight decay. A step has the same size for every element:
//
//   u = b1 m + (1 - b1) g,   x' = (1 - lr decay) x - lr sign(u),   m' = b2 m + (1 - b2) g
//
// Least traffic per element in float32, mixing included: 24 bytes (read p, g, inbox, m; write p,
// m), three quarters of Adam's.

#include <array>
#include <memory>
#include <string_view>
#include <tuple>

#include "base/options.hpp"
#include "optim/rule.hpp"

namespace gossamer {

template <class T>
struct LionCoefficients {
  T lr;
  T shrink;
  T beta1;
  T new1;  // 1 - beta1
  T beta2;
  T new2;  // 1 - beta2
};

struct LionRule {
  static constexpr RuleTraits<1> kTraits = {.state_names = {"m"}};
  template <class T>
  using Coefficients = LionCoefficients<T>;

  double beta1 = 0.9;
  double beta2 = 0.99;

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    return {static_cast<T>(update.lr), static_cast<T>(1.0 - update.lr * update.weight_decay),
            static_cast<T>(beta1),     static_cast<T>(1.0 - beta1),
            static_cast<T>(beta2),     static_cast<T>(1.0 - beta2)};
  }

  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T g,
                                         std::array<T, 1>& state) {
    const T u = c.beta1 * state[0] + c.new1 * g;
    // The sign of 0 is 0, and the sign of NaN is NaN.
    const T sign = u > T{0} ? T{1} : u < T{0} ? T{-1} : u;
    p = c.shrink * p - c.lr * sign;
    state[0] = c.beta2 * state[0] + c.new2 * g;
  }
};

inline constexpr NumberPairOption kLionBetas{
    "betas",
    "weights of the old momentum, in the step and in the new momentum",
    {.fallback = {0.9, 0.99}, .each = {.min = 0.0, .max = 1.0, .below_max = true}}};

struct LionRow {
  static constexpr std::string_view kName = "lion";
  static constexpr std::string_view kSummary =
      "steps of one size, by the sign of the momentum (Lion)";
  static constexpr std::array kOptions = option_list(kLionBetas);
  using Rules = std::tuple<LionRule>;

  template <class Build>
  static std::unique_ptr<Optimizer> make(const Options& options, const Build& build) {
    const auto [beta1, beta2] = options.read(kLionBetas);
    return build(LionRule{.beta1 = beta1, .beta2 = beta2});
  }
};

}  // namespace gossamer
