#pragma once
// The rule of optim/tracker.hpp: y <- y + g - g_old, g_old <- g.

#include <array>
#include <string_view>

#include "optim/rule.hpp"

namespace gossamer {

struct TrackerRule {
  static constexpr int kNumStates = 1;
  static constexpr std::array<std::string_view, 1> kStateNames = {"last_gradient"};
  static constexpr std::array kPhases = {Phase::kMiddle};
  static constexpr bool kEveryStep = true;
  static constexpr StateMask kRestStates = 1U;
  template <class T>
  struct Coefficients {};

  static constexpr StateMask reads(Phase) { return 1U; }
  static constexpr StateMask writes(Phase) { return 1U; }
  [[nodiscard]] std::int64_t cycle() const { return 1; }
  [[nodiscard]] Phase phase(std::int64_t) const { return Phase::kMiddle; }
  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate&) const {
    return {};
  }

  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>&, T& y, T g,
                                         std::array<T, 1>& state) {
    y += g - state[0];
    state[0] = g;
  }
  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void rest(const Coefficients<T>&, T& y, std::array<T, 1>& state,
                                        T /*before*/) {
    y -= state[0];
    state[0] = 0;
  }
};

}  // namespace gossamer
