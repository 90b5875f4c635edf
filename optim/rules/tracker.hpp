#pragma once
// The rule of optim/tracker.hpp: y <- y + u' - u with u' = beta u + g, u <- u'.

#include <array>
#include <string_view>

#include "optim/rule.hpp"

namespace gossamer {

struct TrackerRule {
  static constexpr RuleTraits<1> kTraits = {
      .state_names = {"tracked"}, .every_step = true, .rest_states = 1U};
  template <class T>
  struct Coefficients {
    T beta;
  };

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate&) const {
    return {static_cast<T>(beta)};
  }

  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& y, T g,
                                         std::array<T, 1>& state) {
    const T before = state[0];
    state[0] = c.beta * before + g;
    y += state[0] - before;
  }
  /// A missing gradient is a gradient of zero, because other ranks may have one.
  template <class T, Phase kPhase>
  GOSSAMER_HOST_DEVICE static void rest(const Coefficients<T>& c, T& y, std::array<T, 1>& state,
                                        T /*before*/) {
    apply<T, kPhase>(c, y, T(0), state);
  }

  double beta = 0.0;
};

}  // namespace gossamer
