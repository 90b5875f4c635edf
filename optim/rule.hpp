#pragma once
// A rule is what an optimizer does to one element. The sweeps turn a rule into loops:
// optim/sweep.hpp on processors, optim/cuda on GPUs.
//
// A rule is a small value with
//
//   static constexpr int kNumStates;                      // state values per element
//   static constexpr std::array<std::string_view, kNumStates> kStateNames;
//   static constexpr std::array kPhases = {...};          // the variants of apply
//   static constexpr StateMask reads(Phase);              // the states that a variant reads
//   static constexpr StateMask writes(Phase);             // the states that a variant writes
//   Phase phase(std::int64_t step) const;                 // the variant that a step needs
//   std::int64_t cycle() const;                           // steps after which phases repeat
//   template <class T> Coefficients<T> coefficients(const ParameterUpdate&) const;
//   template <class T, Phase kPhase>
//   GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>&, T& p, T g,
//                                          std::array<T, kNumStates>& state);
//
// Coefficients is the rule's own template of numbers. They are computed in double once per
// parameter and step. apply() gets the mixed parameter p and the scaled gradient g. The sweep loads
// only the states that reads() names, and stores only the states that writes() names.
//
// Four traits are resolved at compile time, so that rules without them pay nothing:
//
//   kSeesBefore   apply() gets one more argument, the parameter before mixing (T before).
//   kEveryStep    the rule also has rest<T, kPhase>(c, p, state, before), which reads and writes
//                 the states of kRestStates alone. The sweep calls rest() for a parameter without a
//                 gradient; such a step does not count. In a step that is
//                 skipped because a gradient was not finite, parameters are only mixed.
//   kFollowsMixing   Optimizer::follows_mixing().
//   kProcessorsOnly  the rule has no kernel (optim/cuda/every_rule.hpp), as one from another
//                 program; an update on a GPU throws ConfigError.

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

template <class Rule>
inline constexpr bool kSeesBefore = requires {
  requires Rule::kSeesBefore;
};
template <class Rule>
inline constexpr bool kEveryStep = requires {
  requires Rule::kEveryStep;
};
template <class Rule>
inline constexpr bool kFollowsMixing = requires {
  requires Rule::kFollowsMixing;
};
template <class Rule>
inline constexpr bool kProcessorsOnly = requires {
  requires Rule::kProcessorsOnly;
};

/// Calls `body.operator()<kPhase>()` for the phase of kPhases that `phase` is. Code for other
/// phases is not made. Throws std::logic_error if kPhases does not hold `phase`.
template <class Rule, class Body>
void with_phase(Phase phase, const Body& body) {
  const auto try_one = [&]<Phase kPhase>() {
    if (phase != kPhase) return false;
    body.template operator()<kPhase>();
    return true;
  };
  const auto try_all = [&]<std::size_t... kPlaces>(std::index_sequence<kPlaces...>) {
    return (try_one.template operator()<Rule::kPhases[kPlaces]>() || ...);
  };
  if (!try_all(std::make_index_sequence<Rule::kPhases.size()>())) {
    throw std::logic_error("kPhases of a rule does not hold the phase that the rule asks for");
  }
}

/// The states that rest() reads and writes.
template <class Rule>
constexpr unsigned rest_states() {
  if constexpr (kEveryStep<Rule>) {
    return Rule::kRestStates;
  } else {
    return 0U;
  }
}

/// The step of one element; passes `before` on to the rules that want it.
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

/// A set of states: bit i stands for state i.
using StateMask = unsigned;

constexpr StateMask all_states(int count) { return (1U << static_cast<unsigned>(count)) - 1U; }

/// Makes the Optimizer of a rule. sweep.hpp defines it.
template <class Rule>
std::unique_ptr<Optimizer> make_rule_optimizer(Rule rule);

}  // namespace gossamer
