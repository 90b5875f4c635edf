#pragma once
// What an optimizer does to one element. The sweeps turn it into loops: optim/sweep.hpp on
// processors, optim/cuda on GPUs.
//
// A rule is a small value with
//
//   static constexpr int kNumStates;                      // state values per element
//   static constexpr std::array<std::string_view, kNumStates> kStateNames;
//   static constexpr std::array kPhases = {...};          // the variants of apply that it has
//   Phase phase(std::int64_t step) const;                 // which of them a step needs
//   std::int64_t cycle() const;                           // steps after which phases repeat
//   template <class T> Coefficients<T> coefficients(const ParameterUpdate&) const;
//   template <class T, Phase kPhase>
//   GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>&, T& p, T g, std::array<T,
//   kNumStates>& state);
//
// where Coefficients is the rule's own template of numbers, computed in double once per parameter
// and step. The sweep loads only the states that reads(phase) names and stores only those that
// writes(phase) names.
//
// Two traits, resolved at compile time, so that rules without them keep their loops:
//
//   kSeesBefore   apply() has one more argument, the parameter before mixing (T before).
//   kEveryStep    the rule also has rest<T, kPhase>(c, p, state, before), which the sweep calls
//   where
//                 the parameter has no gradient. The step does not count. In a step that is skipped
//                 because a gradient was not finite, parameters are only mixed.

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/host_device.hpp"
#include "optim/optimizer.hpp"

namespace gossamer {

/// Where a step stands in a cycle of accumulation. Rules without cycles use kFirst for a
/// parameter's first step if that is special, and kMiddle otherwise.
enum class Phase : std::uint8_t { kFirst, kMiddle, kLast, kOnly };

template <class Rule>
inline constexpr bool kSeesBefore = requires {
  requires Rule::kSeesBefore;
};
template <class Rule>
inline constexpr bool kEveryStep = requires {
  requires Rule::kEveryStep;
};

/// One element's step, with or without the parameter before mixing.
template <class Rule, class T, Phase kPhase>
GOSSAMER_HOST_DEVICE inline void apply_rule(const typename Rule::template Coefficients<T>& c, T& p,
                                            T g, std::array<T, Rule::kNumStates>& state,
                                            [[maybe_unused]] T before) {
  if constexpr (kSeesBefore<Rule>) {
    Rule::template apply<T, kPhase>(c, p, g, state, before);
  } else {
    Rule::template apply<T, kPhase>(c, p, g, state);
  }
}

/// Bit i stands for state i.
using StateMask = unsigned;

constexpr StateMask all_states(int count) { return (1U << static_cast<unsigned>(count)) - 1U; }

/// The Optimizer of a rule. sweep.hpp has its definition.
template <class Rule>
std::unique_ptr<Optimizer> make_rule_optimizer(Rule rule);

}  // namespace gossamer
