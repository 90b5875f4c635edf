#pragma once
// AccumAdam and AccumAdamW (Wang et al., "From Promise to Practice: Realizing High-performance
// Decentralized Training", ICLR 2025). The moments move once in accum_iter steps, by the mean
// gradient of that cycle. Every step still updates the parameters: it adds its own gradient to the
// moments for that step only. Gossip needs this because mixing damps the differences between the
// ranks' parameters in every step, but never those between their moments.
//
// The moments are stored already multiplied by their betas, ready for the next use. The first step
// of a cycle overwrites the accumulator instead of adding to it, so no pass has to zero it. Least
// traffic per element in float32, mixing included: 28 bytes in the first, 32 in a middle, and 36 in
// the last step of a cycle.

#include <array>
#include <memory>
#include <string_view>
#include <tuple>

#include "optim/moments.hpp"
#include "optim/rule.hpp"

namespace gossamer {

template <Decay kDecay>
struct AccumAdamRule {
  static constexpr StateMask kMoments = 0b011;
  static constexpr StateMask kAccumulator = 0b100;
  template <class T>
  using Coefficients = MomentCoefficients<T>;

  MomentOptions options;
  std::int64_t accum_iter = 1;

  static constexpr StateMask reads(Phase phase) {
    const bool begins = phase == Phase::kFirst || phase == Phase::kOnly;
    return begins ? kMoments : kMoments | kAccumulator;
  }
  static constexpr StateMask writes(Phase phase) {
    const bool ends = phase == Phase::kLast || phase == Phase::kOnly;
    return ends ? kMoments : kAccumulator;
  }
  static constexpr RuleTraits<3, 4> kTraits = {
      .state_names = {"m", "v", "accumulator"},
      .phases = {Phase::kFirst, Phase::kMiddle, Phase::kLast, Phase::kOnly},
      .reads = reads,
      .writes = writes,
      .gradient_use = GradientUse::kNormalized};

  [[nodiscard]] std::int64_t cycle() const { return accum_iter; }
  [[nodiscard]] Phase phase(std::int64_t step) const {
    if (accum_iter == 1) return Phase::kOnly;
    const std::int64_t place = step % accum_iter;
    return place == 1 ? Phase::kFirst : place == 0 ? Phase::kLast : Phase::kMiddle;
  }

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    const std::int64_t cycles = (update.step + accum_iter - 1) / accum_iter;
    return moment_coefficients<T>(options, kDecay, update, cycles, accum_iter);
  }

  template <class T, Phase kPhase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T g,
                                         std::array<T, 3>& state) {
    auto& [m, v, sum] = state;
    apply_decay<kDecay>(c, p, g);
    apply_moments(c, p, m + c.new1 * g, v + c.new2 * g * g);
    sum = (reads(kPhase) & kAccumulator) != 0 ? sum + g * c.accumulate : g * c.accumulate;
    if constexpr ((writes(kPhase) & kMoments) != 0) {
      m = (m + c.new1 * sum) * c.beta1;
      v = (v + c.new2 * sum * sum) * c.beta2;
    }
  }
};

inline constexpr IntegerOption kAccumIter{
    "accum_iter", "steps per update of the moments", {.fallback = 4, .min = 1, .max = 1'000'000}};

template <Decay kDecay>
struct AccumAdamRow {
  static constexpr std::string_view kName =
      kDecay == Decay::kCoupled ? "accum_adam" : "accum_adamw";
  static constexpr std::string_view kSummary =
      kDecay == Decay::kCoupled ? "Adam whose moments move once per accum_iter steps"
                                : "the same with decoupled weight decay";
  static constexpr std::array kOptions = option_list(kMomentBetas, kMomentEps, kAccumIter);
  using Rules = std::tuple<AccumAdamRule<kDecay>>;

  template <class Build>
  static std::unique_ptr<Optimizer> make(const Options& options, const Build& build) {
    const MomentOptions moments = read_moment_options(options);
    return build(AccumAdamRule<kDecay>{moments, options.read(kAccumIter)});
  }
};

}  // namespace gossamer
