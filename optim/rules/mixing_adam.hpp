#pragma once
// Adam whose momentum follows the mixing: what mixing moves the parameter by enters the first
// moment, in units of the gradient. So a rank goes on towards its peers, pull b1 / (1 - b1) times
// as far as mixing has moved it, and on uneven data its momentum turns to theirs. Costs no bytes.
//
//   m' = b1 m + (1 - b1) g + pull (x - Wx) (sqrt(v') + eps) / lr
//
// with v' as Adam has it; the step itself is Adam's, from b1 m + (1 - b1) g. DECA (arXiv
// 2606.03209) adds a discrepancy to both moments too, but in units of the parameters, where it is
// as small as a step; in our measurements that only made moments decay (docs/accuracy.md).

#include "optim/moments.hpp"
#include "optim/rule.hpp"

namespace gossamer {

template <class T>
struct MixingAdamCoefficients {
  MomentCoefficients<T> moments;
  T pull;  // divided by the learning rate
};

template <Decay kDecay>
struct MixingAdamRule {
  static constexpr int kNumStates = 2;
  static constexpr std::array<std::string_view, 2> kStateNames = {"m", "v"};
  static constexpr std::array kPhases = {Phase::kMiddle};
  static constexpr bool kSeesBefore = true;
  static constexpr bool kFollowsMixing = true;
  // A smaller rate moves nothing by itself, so that mixing is no sign of steps.
  static constexpr double kLeastRate = 1e-8;
  template <class T>
  using Coefficients = MixingAdamCoefficients<T>;

  MomentOptions options;
  double pull = 0.3;

  static constexpr StateMask reads(Phase) { return all_states(kNumStates); }
  static constexpr StateMask writes(Phase) { return all_states(kNumStates); }
  [[nodiscard]] std::int64_t cycle() const { return 1; }
  [[nodiscard]] Phase phase(std::int64_t) const { return Phase::kMiddle; }

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    return {moment_coefficients<T>(options, kDecay, update, update.step, 1),
            static_cast<T>(update.lr >= kLeastRate ? pull / update.lr : 0.0)};
  }

  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T g,
                                         std::array<T, 2>& state, T before) {
    auto& [m, v] = state;
    const T moved = before - p;
    apply_decay<kDecay>(c.moments, p, g);
    m = c.moments.beta1 * m + c.moments.new1 * g;
    v = c.moments.beta2 * v + c.moments.new2 * g * g;
    apply_moments(c.moments, p, m, v);
    m += c.pull * moved * (std::sqrt(v) * c.moments.root_scale + c.moments.eps);
  }
};

inline constexpr NumberOption kMixingPull{
    "mixing_momentum",
    "part of what mixing moves a parameter by that enters the momentum; 0: none",
    {.fallback = 0.0, .min = 0.0, .max = 0.5}};

/// `build`: turns a rule into an optimizer.
template <Decay kDecay, class Build>
std::unique_ptr<Optimizer> build_mixing_adam(const Options& options, double pull,
                                             const Build& build) {
  return build(MixingAdamRule<kDecay>{read_moment_options(options), pull});
}

}  // namespace gossamer
