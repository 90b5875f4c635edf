#pragma once
// QAdam (Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2021),
// the two phases of 1-bit Adam (Tang et al., "1-bit Adam: Communication Efficient Large-Scale
// Training with Adam's Convergence Speed", ICML 2021). The first K = `warmup` updates of a
// parameter are Adam's. Afterwards its second moment v stands still:
//
//   m' = b1 m + (1 - b1) g,   x' = x - lr m' / (1 - b1^t) / (sqrt(v_K / (1 - b2^K)) + eps)
//
// Then an update is linear in the momentum, so the ranks may round the momenta that they send
// (core/algorithms/allreduce.cpp, `sends: momentum`). The correction of v stands still as v does.
// Bagua's code lets it go on, so its steps grow by up to 1 / sqrt(1 - b2^K). DeepSpeed's code of
// 1-bit Adam has no corrections.
//
// Least traffic per element in float32, mixing included: 32 bytes during the warm-up, then 28.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <tuple>

#include "optim/moments.hpp"
#include "optim/rule.hpp"

namespace gossamer {

struct QAdamRule {
  /// kFirst: the warm-up.
  static constexpr RuleTraits<2, 2> kTraits = {
      .state_names = {"m", "v"},
      .phases = {Phase::kFirst, Phase::kMiddle},
      .writes = [](Phase phase) { return phase == Phase::kFirst ? 3U : 1U; },
      .freezes_moments = true};
  template <class T>
  using Coefficients = MomentCoefficients<T>;

  MomentOptions options;
  std::int64_t warmup = 100;

  [[nodiscard]] std::int64_t cycle() const { return 1; }
  [[nodiscard]] Phase phase(std::int64_t step) const {
    return step <= warmup ? Phase::kFirst : Phase::kMiddle;
  }
  [[nodiscard]] FrozenMoments frozen_moments() const {
    return {.beta1 = options.beta1, .warmup = warmup};
  }

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    const auto at = [&](std::int64_t t) {
      return moment_coefficients<T>(options, Decay::kCoupled, update, t, 1);
    };
    Coefficients<T> c = at(update.step);
    c.root_scale = at(std::min(update.step, warmup)).root_scale;
    return c;
  }

  template <class T, Phase kPhase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T g,
                                         std::array<T, 2>& state) {
    auto& [m, v] = state;
    apply_decay<Decay::kCoupled>(c, p, g);
    m = c.beta1 * m + c.new1 * g;
    if constexpr (kPhase == Phase::kFirst) v = c.beta2 * v + c.new2 * g * g;
    apply_moments(c, p, m, v);
  }
};

inline constexpr IntegerOption kAdamUpdates{
    "warmup",
    "first updates, which are Adam's; then the second moment stands still",
    {.fallback = 100, .min = 1}};

struct QAdamRow {
  static constexpr std::string_view kName = "qadam";
  static constexpr std::string_view kSummary =
      "Adam whose second moment stands still after a warm-up, for allreduce with sends: momentum";
  static constexpr std::array kOptions = option_list(kMomentBetas, kMomentEps, kAdamUpdates);
  using Rules = std::tuple<QAdamRule>;

  template <class Build>
  static std::unique_ptr<Optimizer> make(const Options& options, const Build& build) {
    return build(
        QAdamRule{.options = read_moment_options(options), .warmup = options.read(kAdamUpdates)});
  }
};

}  // namespace gossamer
