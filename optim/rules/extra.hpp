#pragma once
// EXTRA (Shi, Ling, Wu and Yin, "EXTRA: An Exact First-Order Algorithm for Decentralized Consensus
// Optimization", SIAM J. Optim. 2015) around any rule. Gossip drifts on data that differ between
// ranks; EXTRA corrects the drift. A rank also keeps y, the result of half a round of mixing, and
// the difference between its parameters and y is the correction:
//
//   h = (x + W x) / 2
//   first step:   x' = rule(W x),     y' = x' + h - W x
//   later steps:  x' = rule(2 h - y), y' = y + x' - h
//
// In this form the sum of x' over all ranks is the sum of x minus the sum of the updates, for every
// rule, every learning rate and every doubly stochastic W. With Adam the ranks agree where the
// updates cancel, not where the gradients cancel. The theory covers a fixed symmetric W.

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/options.hpp"
#include "optim/rule.hpp"

namespace gossamer {

template <class Inner>
struct ExtraRule {
  static constexpr std::size_t kInner = kNumStates<Inner>;
  static_assert(!Inner::kTraits.sees_before, "the inner rule would not see what was mixed");

  static constexpr auto kTraits = [] {
    RuleTraits<kInner + 1, Inner::kTraits.phases.size()> traits = {
        .phases = Inner::kTraits.phases,
        .reads = [](Phase phase) { return Inner::kTraits.reads(phase) | 1U << kInner; },
        .writes = [](Phase phase) { return Inner::kTraits.writes(phase) | 1U << kInner; },
        .sees_before = true,
        .every_step = true,
        .rest_states = 1U << kInner};
    for (std::size_t k = 0; k < kInner; ++k) traits.state_names[k] = Inner::kTraits.state_names[k];
    traits.state_names[kInner] = "extra";
    return traits;
  }();

  template <class T>
  struct Coefficients {
    typename Inner::template Coefficients<T> inner;
    /// 1 in a parameter's first step, else 0.
    T first;
  };

  Inner rule;

  [[nodiscard]] std::int64_t cycle() const { return rule_cycle(rule); }
  [[nodiscard]] Phase phase(std::int64_t step) const { return rule_phase(rule, step); }
  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    return {rule.template coefficients<T>(update), static_cast<T>(update.step == 1 ? 1 : 0)};
  }

  template <class T, Phase kPhase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T g,
                                         std::array<T, kInner + 1>& state, T before) {
    const T half = T(0.5) * (before + p);
    const T start = c.first != T(0) ? p : T(2) * half - state[kInner];
    // The old y. The first step has none and uses the value for which 2 h - y gives `start`.
    const T y = c.first != T(0) ? T(2) * half - p : state[kInner];
    std::array<T, kInner> inner{};
    for (std::size_t k = 0; k < kInner; ++k) inner[k] = state[k];
    p = start;
    Inner::template apply<T, kPhase>(c.inner, p, g, inner);
    for (std::size_t k = 0; k < kInner; ++k) state[k] = inner[k];
    state[kInner] = y + p - half;
  }

  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void rest(const Coefficients<T>& c, T& p,
                                        std::array<T, kInner + 1>& state, T before) {
    // A parameter that has never been updated is only mixed.
    if (c.first != T(0)) return;
    const T half = T(0.5) * (before + p);
    p = T(2) * half - state[kInner];
    state[kInner] += p - half;
  }
};

/// Makes EXTRA's rule around a rule before it calls `build`.
template <class Build>
struct BuildInExtra {
  const Build& build;

  template <class Rule>
  requires(!Rule::kTraits.sees_before) std::unique_ptr<Optimizer>
  operator()(const Rule& rule) const { return build(ExtraRule<Rule>{rule}); }
};

/// EXTRA's rules around the rules of a tuple that it can hold.
template <class... Rules>
auto in_extra(const std::tuple<Rules...>& /*rules*/) {
  return std::tuple_cat(std::conditional_t<Rules::kTraits.sees_before, std::tuple<>,
                                           std::tuple<ExtraRule<Rules>>>()...);
}

inline constexpr NamedOption kInnerRule{"rule", "the optimizer inside", {.fallback = "sgd"}};
inline constexpr ChoiceOption kInnerName{"name", "the optimizer inside"};

/// `Inner`: the rows of the optimizers that may stand inside.
template <class... Inner>
struct ExtraRow {
  static constexpr std::string_view kName = "extra";
  static constexpr std::string_view kSummary =
      "EXTRA's correction of gossip's drift, around another optimizer";
  static constexpr std::array kOptions = option_list(kInnerRule);
  using Rules = decltype(std::tuple_cat(in_extra(std::declval<typename Inner::Rules>())...));

  template <class Build>
  static std::unique_ptr<Optimizer> make(const Options& options, const Build& build) {
    const Options inner = options.read(kInnerRule);
    const std::string name =
        inner.read(kInnerName, kInnerRule.rule.fallback, {std::string(Inner::kName)...});
    std::unique_ptr<Optimizer> made;
    const auto make_if_named = [&]<class Row>(Row /*row*/) {
      if (Row::kName == name) made = Row::make(inner, BuildInExtra<Build>{build});
    };
    (make_if_named(Inner()), ...);
    return made;
  }
};

}  // namespace gossamer
