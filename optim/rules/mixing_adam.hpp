#pragma once
// Adam whose momentum follows the mixing: the distance by which mixing moves the parameter enters
// the first moment, in units of the gradient. So a rank goes on towards its peers, pull b1 / (1 -
// b1) times as far as mixing has moved it. On uneven data its momentum then turns towards its
// peers' momenta. The rule sends no additional bytes.
//
//   m' = b1 m + (1 - b1) g + pull (x - Wx) (sqrt(v') + eps) / lr
//
// with v' as Adam has it; the step itself is Adam's, from b1 m + (1 - b1) g. DECA (arXiv
// 2606.03209) adds a discrepancy to both moments too, but in units of the parameters, where it is
// as small as a step. In our measurements that only made moments decay
// (docs/measurements/accuracy.md).

#include <array>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "base/options.hpp"
#include "optim/rules/adam.hpp"

namespace gossamer {

template <class T>
struct MixingAdamCoefficients {
  MomentCoefficients<T> moments;
  T pull;  // divided by the learning rate
};

template <Decay kDecay>
struct MixingAdamRule : AdamRule<kDecay> {
  static constexpr RuleTraits<2> kTraits = {
      .state_names = {"m", "v"}, .sees_before = true, .follows_mixing = true};
  // A smaller rate moves nothing by itself, so that mixing is no sign of steps.
  static constexpr double kLeastRate = 1e-8;
  template <class T>
  using Coefficients = MixingAdamCoefficients<T>;

  double pull = 0.3;

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    return {AdamRule<kDecay>::template coefficients<T>(update),
            static_cast<T>(update.lr >= kLeastRate ? pull / update.lr : 0.0)};
  }

  template <class T, Phase kPhase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T g,
                                         std::array<T, 2>& state, T before) {
    const T moved = before - p;
    AdamRule<kDecay>::template apply<T, kPhase>(c.moments, p, g, state);
    auto& [m, v] = state;
    m += c.pull * moved * (std::sqrt(v) * c.moments.root_scale + c.moments.eps);
  }
};

inline constexpr NumberOption kMixingPull{
    "mixing_momentum",
    "part of what mixing moves a parameter by that enters the momentum; 0: none",
    {.fallback = 0.0, .min = 0.0, .max = 0.5}};

/// Adam, and Adam whose momentum follows the mixing where `build` can take it.
template <Decay kDecay>
struct AdamRow {
  static constexpr std::string_view kName = kDecay == Decay::kCoupled ? "adam" : "adamw";
  static constexpr std::string_view kSummary = kDecay == Decay::kCoupled
                                                   ? "Adam, weight decay added to the gradient"
                                                   : "Adam, decoupled weight decay";
  static constexpr std::array kOptions = option_list(kMomentBetas, kMomentEps, kMixingPull);
  using Rules = std::tuple<AdamRule<kDecay>, MixingAdamRule<kDecay>>;

  template <class Build>
  static std::unique_ptr<Optimizer> make(const Options& options, const Build& build) {
    if constexpr (std::is_invocable_v<Build, MixingAdamRule<kDecay>>) {
      const double pull = options.read(kMixingPull);
      if (pull > 0.0) return build(MixingAdamRule<kDecay>{{read_moment_options(options)}, pull});
    }
    return build(AdamRule<kDecay>{read_moment_options(options)});
  }
};

}  // namespace gossamer
