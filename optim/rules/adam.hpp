#pragma once
// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019), with the same arithmetic as
// torch.optim. Least traffic per element in float32, mixing included: 32 bytes (read p, g, inbox,
// m, v; write p, m, v).

#include <array>
#include <string_view>

#include "optim/moments.hpp"
#include "optim/rule.hpp"

namespace gossamer {

template <Decay kDecay>
struct AdamRule {
  static constexpr RuleTraits<2> kTraits = {.state_names = {"m", "v"},
                                            .gradient_use = GradientUse::kNormalized};
  template <class T>
  using Coefficients = MomentCoefficients<T>;

  MomentOptions options;

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

}  // namespace gossamer
