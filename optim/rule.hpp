#pragma once
// A rule is what an optimizer does to one element. The sweeps turn a rule into loops:
// optim/sweep.hpp on processors, optim/cuda on GPUs.
//
// A rule is a small value with
//
//   static constexpr RuleTraits<number of states> kTraits = {...};
//   template <class T> struct Coefficients;               // the rule's numbers of one step
//   template <class T> Coefficients<T> coefficients(const ParameterUpdate&) const;
//   template <class T, Phase kPhase>
//   GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>&, T& p, T g,
//                                          std::array<T, number of states>& state);
//
// The numbers are computed in double once per parameter and step. apply() gets the mixed parameter
// p and the scaled gradient g. Traits are resolved at compile time, so that rules without them pay
// nothing.
//
// A rule of every_optimizer.hpp has kernels. With another rule, as one from another program, an
// update on a GPU throws ConfigError.

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/host_device.hpp"
#include "optim/optimizer.hpp"

namespace gossamer {

/// Where a step stands in a cycle of accumulation; a cycle of one step has kOnly. Rules without
/// cycles use kFirst for a parameter's first steps if they are special, and kMiddle otherwise.
enum class Phase : std::uint8_t { kFirst, kMiddle, kLast, kOnly };

/// A set of states: bit i stands for state i.
using StateMask = unsigned;

/// What a rule says of itself. `kVariants`: the number of variants of apply().
template <std::size_t kStates = 0, std::size_t kVariants = 1>
struct RuleTraits {
  static constexpr StateMask all_states(Phase /*phase*/) { return (1U << kStates) - 1U; }

  /// Optimizer::state_names().
  std::array<std::string_view, kStates> state_names = {};
  /// A rule with several variants also has
  ///
  ///   Phase phase(std::int64_t step) const;   // the variant that a step needs
  ///   std::int64_t cycle() const;             // Optimizer::cycle()
  std::array<Phase, kVariants> phases = {Phase::kMiddle};
  /// The sweep loads only the states that `reads` names, and stores only those that `writes` names.
  StateMask (*reads)(Phase) = all_states;
  StateMask (*writes)(Phase) = all_states;
  /// True: apply() gets one more argument, the parameter before mixing (T before).
  bool sees_before = false;
  /// True: the rule also has rest<T, kPhase>(c, p, state, before), which reads and writes
  /// `rest_states` alone. The sweep calls it for a parameter without a gradient; such a step does
  /// not count. In a step that is skipped because a gradient was not finite, parameters are only
  /// mixed.
  bool every_step = false;
  StateMask rest_states = 0;
  /// Optimizer::follows_mixing().
  bool follows_mixing = false;
  /// Optimizer::gradient_use().
  GradientUse gradient_use = GradientUse::kUnknown;
  /// True: the rule also has Optimizer::frozen_moments().
  bool freezes_moments = false;
};

template <class Rule>
inline constexpr int kNumStates = static_cast<int>(Rule::kTraits.state_names.size());

/// The variant that a step needs.
template <class Rule>
Phase rule_phase([[maybe_unused]] const Rule& rule, [[maybe_unused]] std::int64_t step) {
  if constexpr (Rule::kTraits.phases.size() > 1) {
    return rule.phase(step);
  } else {
    return Rule::kTraits.phases.front();
  }
}

/// Optimizer::cycle() of a rule.
template <class Rule>
std::int64_t rule_cycle([[maybe_unused]] const Rule& rule) {
  if constexpr (Rule::kTraits.phases.size() > 1) {
    return rule.cycle();
  } else {
    return 1;
  }
}

/// Calls `body.operator()<kPhase>()` for the phase of the rule that `phase` is. Code for other
/// phases is not made. Throws std::logic_error if the rule has no such phase.
template <class Rule, class Body>
void with_phase(Phase phase, const Body& body) {
  constexpr auto kPhases = Rule::kTraits.phases;
  const auto try_one = [&]<Phase kPhase>() {
    if (phase != kPhase) return false;
    body.template operator()<kPhase>();
    return true;
  };
  const auto try_all = [&]<std::size_t... kPlaces>(std::index_sequence<kPlaces...>) {
    return (try_one.template operator()<kPhases[kPlaces]>() || ...);
  };
  if (!try_all(std::make_index_sequence<kPhases.size()>())) {
    throw std::logic_error("the traits of a rule do not hold the phase that the rule asks for");
  }
}

/// The step of one element; passes `before` on to the rules that want it.
template <class Rule, class T, Phase kPhase>
GOSSAMER_HOST_DEVICE inline void apply_rule(const typename Rule::template Coefficients<T>& c, T& p,
                                            T g, std::array<T, kNumStates<Rule>>& state,
                                            [[maybe_unused]] T before) {
  if constexpr (Rule::kTraits.sees_before) {
    Rule::template apply<T, kPhase>(c, p, g, state, before);
  } else {
    Rule::template apply<T, kPhase>(c, p, g, state);
  }
}

/// Makes the Optimizer of a rule. sweep.hpp defines it.
template <class Rule>
std::unique_ptr<Optimizer> make_rule_optimizer(Rule rule);

}  // namespace gossamer
