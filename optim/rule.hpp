#pragma once
// A rule is what an optimizer does to one element. The sweeps turn a rule into loops:
// optim/sweep.hpp on processors, optim/cuda on GPUs.
//
// A rule is a small value with
//
//   template <class T> struct Coefficients;               // the rule's numbers of one step
//   template <class T> Coefficients<T> coefficients(const ParameterUpdate&) const;
//   template <class T, Phase kPhase>
//   GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>&, T& p, T g,
//                                          std::array<T, number of states>& state);
//
// The numbers are computed in double once per parameter and step. apply() gets the mixed parameter
// p and the scaled gradient g. What a rule need not say (RuleTraits):
//
//   static constexpr std::array<std::string_view, N> kStateNames;  // else it has no states
//   static constexpr std::array kPhases = {...};   // the variants of apply; else kMiddle alone
//   Phase phase(std::int64_t step) const;          // the variant that a step needs; else kMiddle
//   std::int64_t cycle() const;                    // steps after which phases repeat; else 1
//   static constexpr StateMask reads(Phase);       // the states that a variant reads; else all
//   static constexpr StateMask writes(Phase);      // the states that a variant writes; else all
//
// The sweep loads only the states that reads() names, and stores only the states that writes()
// names.
//
// Three traits are resolved at compile time, so that rules without them pay nothing:
//
//   kSeesBefore   apply() gets one more argument, the parameter before mixing (T before).
//   kEveryStep    the rule also has rest<T, kPhase>(c, p, state, before), which reads and writes
//                 the states of kRestStates alone. The sweep calls rest() for a parameter without a
//                 gradient; such a step does not count. In a step that is skipped because a
//                 gradient was not finite, parameters are only mixed.
//   kFollowsMixing   Optimizer::follows_mixing().
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

/// The members by which a rule describes its states and phases, with the defaults of rules that
/// lack them.
template <class Rule>
struct RuleTraits {
  static constexpr auto kStateNames = [] {
    if constexpr (requires { Rule::kStateNames; }) {
      return Rule::kStateNames;
    } else {
      return std::array<std::string_view, 0>{};
    }
  }();
  static constexpr int kNumStates = static_cast<int>(kStateNames.size());
  static constexpr StateMask kAllStates = (1U << static_cast<unsigned>(kNumStates)) - 1U;
  static constexpr auto kPhases = [] {
    if constexpr (requires { Rule::kPhases; }) {
      return Rule::kPhases;
    } else {
      return std::array{Phase::kMiddle};
    }
  }();

  static constexpr StateMask reads([[maybe_unused]] Phase phase) {
    if constexpr (requires { Rule::reads(phase); }) {
      return Rule::reads(phase);
    } else {
      return kAllStates;
    }
  }
  static constexpr StateMask writes([[maybe_unused]] Phase phase) {
    if constexpr (requires { Rule::writes(phase); }) {
      return Rule::writes(phase);
    } else {
      return kAllStates;
    }
  }
  static Phase phase([[maybe_unused]] const Rule& rule, [[maybe_unused]] std::int64_t step) {
    if constexpr (requires { rule.phase(step); }) {
      return rule.phase(step);
    } else {
      return Phase::kMiddle;
    }
  }
  static std::int64_t cycle([[maybe_unused]] const Rule& rule) {
    if constexpr (requires { rule.cycle(); }) {
      return rule.cycle();
    } else {
      return 1;
    }
  }
};

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

/// Calls `body.operator()<kPhase>()` for the phase of kPhases that `phase` is. Code for other
/// phases is not made. Throws std::logic_error if kPhases does not hold `phase`.
template <class Rule, class Body>
void with_phase(Phase phase, const Body& body) {
  constexpr auto kPhases = RuleTraits<Rule>::kPhases;
  const auto try_one = [&]<Phase kPhase>() {
    if (phase != kPhase) return false;
    body.template operator()<kPhase>();
    return true;
  };
  const auto try_all = [&]<std::size_t... kPlaces>(std::index_sequence<kPlaces...>) {
    return (try_one.template operator()<kPhases[kPlaces]>() || ...);
  };
  if (!try_all(std::make_index_sequence<kPhases.size()>())) {
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
                                            T g, std::array<T, RuleTraits<Rule>::kNumStates>& state,
                                            [[maybe_unused]] T before) {
  if constexpr (kSeesBefore<Rule>) {
    Rule::template apply<T, kPhase>(c, p, g, state, before);
  } else {
    Rule::template apply<T, kPhase>(c, p, g, state);
  }
}

/// Makes the Optimizer of a rule. sweep.hpp defines it.
template <class Rule>
std::unique_ptr<Optimizer> make_rule_optimizer(Rule rule);

}  // namespace gossamer
