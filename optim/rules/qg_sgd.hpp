#pragma once
// Gradient descent with quasi-global momentum (Lin, Karimireddy, Stich and Jaggi, "Quasi-Global
// Momentum", ICML 2021). The momentum buffer follows the real movement of the parameters, mixing
// included, instead of this rank's own gradients:
//
//   d = beta m + g,   x' = W x - lr d,   m' = mu m + (1 - mu) (x - x') / lr
//
// The buffer stays as it is in skipped steps, and in steps whose learning rate is below kLeastRate,
// as at the end of a schedule. The paper mixes after the update; here mixing comes first, as
// everywhere in the pipeline.

#include <array>
#include <memory>
#include <string_view>
#include <tuple>

#include "base/options.hpp"
#include "optim/rule.hpp"

namespace gossamer {

template <class T>
struct QuasiGlobalCoefficients {
  T lr;
  T decay;
  T momentum;
  /// m <- keep m + take (x - x').
  T keep;
  T take;
};

struct QuasiGlobalRule {
  static constexpr RuleTraits<1> kTraits = {.state_names = {"momentum"}, .sees_before = true};
  static constexpr double kLeastRate = 1e-8;
  template <class T>
  using Coefficients = QuasiGlobalCoefficients<T>;

  double momentum = 0.9;
  double mu = 0.9;

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    const bool moves = update.lr >= kLeastRate;
    return {static_cast<T>(update.lr), static_cast<T>(update.weight_decay),
            static_cast<T>(momentum), static_cast<T>(moves ? mu : 1.0),
            static_cast<T>(moves ? (1.0 - mu) / update.lr : 0.0)};
  }

  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T g,
                                         std::array<T, 1>& state, T before) {
    g += c.decay * p;
    p -= c.lr * (c.momentum * state[0] + g);
    state[0] = c.keep * state[0] + c.take * (before - p);
  }
};

inline constexpr NumberOption kBufferWeight{
    "beta",
    "weight of the buffer in a step",
    {.fallback = 0.9, .min = 0.0, .max = 1.0, .below_max = true}};
inline constexpr NumberOption kOldBufferWeight{
    "mu",
    "weight of the old buffer in the new one",
    {.fallback = 0.9, .min = 0.0, .max = 1.0, .below_max = true},
    "that of beta"};

struct QuasiGlobalRow {
  static constexpr std::string_view kName = "qg_sgd";
  static constexpr std::string_view kSummary =
      "gradient descent with quasi-global momentum, for gossip";
  static constexpr std::array kOptions = option_list(kBufferWeight, kOldBufferWeight);
  using Rules = std::tuple<QuasiGlobalRule>;

  template <class Build>
  static std::unique_ptr<Optimizer> make(const Options& options, const Build& build) {
    QuasiGlobalRule rule{.momentum = options.read(kBufferWeight)};
    rule.mu = options.read(kOldBufferWeight, rule.momentum);
    return build(rule);
  }
};

}  // namespace gossamer
