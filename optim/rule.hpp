#pragma once
// What an optimizer does to one element. The sweeps turn it into loops: optim/sweep.hpp on
// processors, optim/cuda on GPUs.
//
// A rule is a small value with
//
//   static constexpr int kNumStates;                      // state values per element
//   Phase phase(std::int64_t step) const;                 // which variant of apply a step needs
//   std::int64_t cycle() const;                           // steps after which phases repeat
//   template <class T> Coefficients<T> coefficients(const ParameterUpdate&) const;
//   template <class T, Phase kPhase>
//   GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>&, T& p, T g, std::array<T,
//   kNumStates>& state);
//
// where Coefficients is the rule's own template of numbers, computed in double once per parameter
// and step. What apply does not read or write is not loaded or stored: kReads and kWrites name, per
// phase, the states whose old value counts and whose new value is kept.

#include <array>
#include <cstdint>
#include <memory>

#include "base/host_device.hpp"
#include "optim/optimizer.hpp"

namespace gossamer {

/// Where a step stands in a cycle of accumulation. Rules without cycles use kFirst for a
/// parameter's first step if that is special, and kMiddle otherwise.
enum class Phase : std::uint8_t { kFirst, kMiddle, kLast, kOnly };

/// Bit i stands for state i.
using StateMask = unsigned;

constexpr StateMask all_states(int count) { return (1U << static_cast<unsigned>(count)) - 1U; }

/// The Optimizer of a rule. sweep.hpp has its definition.
template <class Rule>
std::unique_ptr<Optimizer> make_rule_optimizer(Rule rule);

}  // namespace gossamer
