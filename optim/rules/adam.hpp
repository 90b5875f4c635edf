#pragma once
// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019), with the same arithmetic as
// torch.optim. Least traffic per element in float32, mixing included: 32 bytes (read p, g, inbox,
// m, v; write p, m, v).

#include "optim/moments.hpp"
#include "optim/rule.hpp"

namespace gossamer {

template <Decay kDecay>
struct AdamRule {
  static constexpr int kNumStates = 2;
  static constexpr std::array<std::string_view, 2> kStateNames = {"m", "v"};
  static constexpr std::array kPhases = {Phase::kMiddle};
  template <class T>
  using Coefficients = MomentCoefficients<T>;

  MomentOptions options;

  static constexpr StateMask reads(Phase) { return all_states(kNumStates); }
  static constexpr StateMask writes(Phase) { return all_states(kNumStates); }
  [[nodiscard]] std::int64_t cycle() const { return 1; }
  [[nodiscard]] Phase phase(std::int64_t) const { return Phase::kMiddle; }

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    return moment_coefficients<T>(options, kDecay, update, update.step, 1);
  }

  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T g,
                                         std::array<T, 2>& state) {
    auto& [m, v] = state;
    apply_decay<kDecay>(c, p, g);
    m = c.beta1 * m + c.new1 * g;
    v = c.beta2 * v + c.new2 * g * g;
    apply_moments(c, p, m, v);
  }
};

/// `build`: turns a rule into an optimizer.
template <Decay kDecay, class Build>
std::unique_ptr<Optimizer> build_adam(const Options& options, const Build& build) {
  return build(AdamRule<kDecay>{read_moment_options(options)});
}

}  // namespace gossamer
