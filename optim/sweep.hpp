#pragma once
// The sweep: the one pass over memory that a step needs on processors. It turns a rule (rule.hpp)
// into loops over a parameter that mix, scale the gradient and update. optim/cuda has the sweep for
// GPUs.
//
// Errors: std::logic_error for types that do not fit, and for a phase that the rule does not list.

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "optim/cuda/sweep.hpp"
#include "optim/optimizer.hpp"
#include "optim/rule.hpp"
#include "optim/simd.hpp"

namespace gossamer {

namespace internal {

// The loops walk up to six arrays at once. The hardware cannot prefetch so many, least of all from
// page to page. Prefetching by instruction saves 8 to 12 % of the time where memory is the limit.
constexpr std::int64_t kPrefetchBytes = 256;
constexpr std::uintptr_t kPrefetchAhead = 1024;

[[gnu::always_inline]] inline void prefetch_after(const void* block) {
  prefetch(block, kPrefetchAhead, kPrefetchBytes);
}

/// The number of inboxes that a loop is compiled for. One inbox is by far the most frequent case,
/// and its loop needs no buffer.
enum class Mixing : std::uint8_t { kNone, kOne, kMany };

constexpr std::int64_t kMostInBlock = kPrefetchBytes / std::int64_t{sizeof(float)};

/// Writes elements [first, last) of the mixed x into `mixed`, which stays in the first-level cache.
template <class T>
[[gnu::always_inline]] inline void mix_block(const ParameterUpdate& update, std::int64_t first,
                                             std::int64_t last, T* mixed) {
  const T* const p = static_cast<const T*>(update.parameter.data) + first;
  const T keep = update.inboxes.empty() ? T{1} : static_cast<T>(update.keep);
  const std::int64_t count = last - first;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) mixed[i] = keep * p[i];
  for (const Inbox& from : update.inboxes) {
    const T* const inbox = static_cast<const T*>(from.block.data) + first;
    const T take = static_cast<T>(from.weight);
    prefetch_after(inbox);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) mixed[i] += take * inbox[i];
  }
}

/// The loop over one parameter. T: the type of the parameters and states. G: the type of the
/// gradients, with which the model computes; where G is not T, the loop also writes the rounded
/// copy. kRests: the parameter has no gradient, and the loop calls rest() instead of apply().
template <class Rule, class T, class G, Phase kPhase, Mixing kMix, bool kRests>
struct SweepLoop {
  const ParameterUpdate& update;
  const typename Rule::template Coefficients<T>& coefficients;

  [[gnu::always_inline]] void operator()() const {
    constexpr int kStates = kNumStates<Rule>;
    constexpr StateMask kReads = kRests ? Rule::kTraits.rest_states : Rule::kTraits.reads(kPhase);
    constexpr StateMask kWrites = kRests ? Rule::kTraits.rest_states : Rule::kTraits.writes(kPhase);
    // The compiler can keep a copy in registers: no store through a pointer can change it.
    const auto c = coefficients;
    T* const p = static_cast<T*>(update.parameter.data);
    const G* const g = static_cast<const G*>(update.gradient.data);
    constexpr bool kRounds = !std::is_same_v<T, G>;
    G* const rounded = kRounds ? static_cast<G*>(update.rounded.data) : nullptr;
    const T* inbox = nullptr;
    T take = 0;
    if constexpr (kMix == Mixing::kOne) {
      inbox = static_cast<const T*>(update.inboxes.front().block.data);
      take = static_cast<T>(update.inboxes.front().weight);
    }
    std::array<T*, kStates> states{};
    for (std::size_t k = 0; k < states.size(); ++k) states[k] = static_cast<T*>(update.states[k]);
    const T scale = static_cast<T>(update.gradient_scale);
    const T keep = static_cast<T>(update.keep);
    const std::int64_t numel = update.parameter.numel;
    constexpr std::int64_t kBlock = kPrefetchBytes / std::int64_t{sizeof(T)};
    std::array<T, kMix == Mixing::kMany ? kMostInBlock : 1> mixed;
    for (std::int64_t first = 0; first < numel; first += kBlock) {
      const std::int64_t last = first + kBlock < numel ? first + kBlock : numel;
      prefetch_after(p + first);
      if constexpr (!kRests) prefetch_after(g + first);
      if constexpr (kRounds) prefetch_after(rounded + first);
      if constexpr (kMix == Mixing::kOne) prefetch_after(inbox + first);
      if constexpr (kMix == Mixing::kMany) mix_block(update, first, last, mixed.data());
      for (std::size_t k = 0; k < states.size(); ++k) {
        if ((kReads | kWrites) >> k & 1U) prefetch_after(states[k] + first);
      }
#pragma GCC ivdep
      for (std::int64_t i = first; i < last; ++i) {
        const T before = p[i];
        T x = before;
        if constexpr (kMix == Mixing::kOne) x = keep * x + take * inbox[i];
        if constexpr (kMix == Mixing::kMany) x = mixed[static_cast<std::size_t>(i - first)];
        std::array<T, kStates> state{};
        for (std::size_t k = 0; k < state.size(); ++k) {
          if (kReads >> k & 1U) state[k] = states[k][i];
        }
        if constexpr (kRests) {
          Rule::template rest<T, kPhase>(c, x, state, before);
        } else {
          apply_rule<Rule, T, kPhase>(c, x, widened(g[i]) * scale, state, before);
        }
        for (std::size_t k = 0; k < state.size(); ++k) {
          if (kWrites >> k & 1U) states[k][i] = state[k];
        }
        p[i] = x;
        if constexpr (kRounds) rounded[i] = rounded_to_bfloat16(x);
      }
    }
  }
};

template <class Rule, class T, class G, Mixing kMix, bool kRests>
void sweep_phase(const Rule& rule, const ParameterUpdate& update) {
  const auto c = rule.template coefficients<T>(update);
  with_phase<Rule>(rule_phase(rule, update.step), [&]<Phase kPhase>() {
    run_on(update.simd, SweepLoop<Rule, T, G, kPhase, kMix, kRests>{update, c});
  });
}

template <class Rule, class T, class G = T, bool kRests = false>
void sweep_typed(const Rule& rule, const ParameterUpdate& update) {
  // These rules and float64 are not made for speed, so one loop for any number of inboxes is
  // enough.
  if constexpr (Rule::kTraits.sees_before || Rule::kTraits.every_step ||
                std::is_same_v<T, double>) {
    return sweep_phase<Rule, T, G, Mixing::kMany, kRests>(rule, update);
  } else {
    switch (update.inboxes.size()) {
      case 0:
        return sweep_phase<Rule, T, G, Mixing::kNone, kRests>(rule, update);
      case 1:
        return sweep_phase<Rule, T, G, Mixing::kOne, kRests>(rule, update);
      default:
        return sweep_phase<Rule, T, G, Mixing::kMany, kRests>(rule, update);
    }
  }
}

/// A step of a rule with `every_step` for a parameter without a gradient.
template <class Rule>
void sweep_resting(const Rule& rule, const ParameterUpdate& update) {
  if (update.parameter.dtype == DType::kFloat64) {
    return sweep_typed<Rule, double, double, true>(rule, update);
  }
  if (update.rounded.data != nullptr) {
    return sweep_typed<Rule, float, BFloat16, true>(rule, update);
  }
  return sweep_typed<Rule, float, float, true>(rule, update);
}

inline void require_fitting(const ParameterUpdate& update) {
  const DType model = update.gradient.dtype;
  const bool rounds = update.rounded.data != nullptr || update.parameter.numel == 0;
  if (update.parameter.dtype == master_of(model) && (model != DType::kBFloat16 || rounds)) return;
  throw std::logic_error("sweep: the gradient's type does not fit the parameter's");
}

}  // namespace internal

/// Runs a rule over one parameter.
template <class Rule>
void sweep(const Rule& rule, const ParameterUpdate& update) {
  static_assert(kNumStates<Rule> <= kMaxStates);
  if (update.gradient.data == nullptr) {
    if constexpr (Rule::kTraits.every_step) {
      return internal::sweep_resting(rule, update);
    } else {
      return mix(update);
    }
  }
  internal::require_fitting(update);
  switch (update.gradient.dtype) {
    case DType::kFloat32:
      return internal::sweep_typed<Rule, float>(rule, update);
    case DType::kFloat64:
      return internal::sweep_typed<Rule, double>(rule, update);
    case DType::kBFloat16:
      return internal::sweep_typed<Rule, float, BFloat16>(rule, update);
    case DType::kInt64:
    case DType::kUInt8:
      break;
  }
  throw std::logic_error("sweep: gradients must be float32, float64 or bfloat16");
}

/// The optimizer that applies a rule.
template <class Rule>
class RuleOptimizer : public OnePassOptimizer {
 public:
  explicit RuleOptimizer(Rule rule) : rule_(rule) {}
  [[nodiscard]] std::span<const std::string_view> state_names() const override {
    return Rule::kTraits.state_names;
  }
  [[nodiscard]] std::int64_t cycle() const override { return rule_cycle(rule_); }
  [[nodiscard]] PassTraffic least_traffic(std::int64_t step, DType model) const override {
    const Phase phase = rule_phase(rule_, step);
    const StateMask reads = Rule::kTraits.reads(phase);
    const StateMask writes = Rule::kTraits.writes(phase);
    const DType master = master_of(model);
    const auto states = [master](StateMask mask) { return size_of(master) * std::popcount(mask); };
    // Master type: the inbox, the parameter, the states. Model type: the gradient, and the rounded
    // copy where there is one.
    return {.read = size_of(master) + states(reads & ~writes) + size_of(model),
            .changed = size_of(master) + states(reads & writes),
            .written = states(writes & ~reads) + (master == model ? 0 : size_of(model))};
  }
  [[nodiscard]] std::optional<FrozenMoments> frozen_moments() const override {
    if constexpr (Rule::kTraits.freezes_moments) {
      return rule_.frozen_moments();
    } else {
      return std::nullopt;
    }
  }
  [[nodiscard]] bool follows_mixing() const override { return Rule::kTraits.follows_mixing; }
  [[nodiscard]] bool sees_mixing() const override { return Rule::kTraits.sees_before; }
  [[nodiscard]] GradientUse gradient_use() const override { return Rule::kTraits.gradient_use; }
  [[nodiscard]] const void* rule() const override { return &rule_; }
  void update(const ParameterUpdate& update) const override { sweep(rule_, update); }
  void update_on_device(Stream& stream, std::span<const BlockUpdate> updates) const override {
    cuda_sweep({.type = typeid(Rule), .value = &rule_}, stream, updates);
  }

 private:
  Rule rule_;
};

template <class Rule>
std::unique_ptr<Optimizer> make_rule_optimizer(Rule rule) {
  return std::make_unique<RuleOptimizer<Rule>>(rule);
}

}  // namespace gossamer
