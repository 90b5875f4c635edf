#pragma once
// The table of one launch of the sweep kernel: what the launch works on, and how the work is dealt
// out. The table is a kernel parameter (at most 32,764 bytes from CUDA 12.1 on), so a launch needs
// no copy to the device and the host never waits.
//
// The segments of a block are cut into chunks. The thread blocks of a persistent grid take chunk
// after chunk, and find the segment of a chunk by bisection.
//
// All code here but the kernel itself also runs on processors, so that tests need no GPU.

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/host_device.hpp"
#include "optim/block.hpp"
#include "optim/cuda/pack.hpp"
#include "optim/rule.hpp"

namespace gossamer {

inline constexpr int kSweepThreads = 256;
/// Bytes of the widest access.
inline constexpr std::int64_t kVectorBytes = 16;

inline constexpr int kMaxSegments = 512;
inline constexpr int kMaxCoefficients = 16;
/// The inboxes of one launch; in_portions() mixes more.
inline constexpr int kMaxInboxes = 16;

template <class T>
inline constexpr std::int64_t kLanes = kVectorBytes / std::int64_t{sizeof(T)};
/// Elements: one vector for each thread of a block. Small chunks end the launch evenly: with four
/// vectors a bucket of 25 MiB took 7 % longer on an H200, because a few blocks had a chunk more.
template <class T>
inline constexpr std::int64_t kChunk = kSweepThreads* kLanes<T>;

/// One parameter of a launch.
struct SweepSegment {
  /// Null: the segment is only mixed, or rests (RuleTraits::every_step).
  const void* gradient = nullptr;
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  std::int32_t first_chunk = 0;
  std::int16_t coefficients = 0;
  /// True: kLanes elements may be accessed at once at all addresses of the segment.
  bool aligned = false;
};

/// T: the type of the parameters and states. G: the type of the gradients, with which the model
/// computes; where G is not T, the kernel also writes the rounded copy.
template <class Coefficients, class T, class G>
struct SweepTable {
  T* parameters = nullptr;
  /// The block with which mixing begins: the parameters, or the result of an earlier launch.
  const T* source = nullptr;
  G* rounded = nullptr;
  std::array<T*, kMaxStates> states = {};
  std::array<const T*, kMaxInboxes> inboxes = {};
  std::array<T, kMaxInboxes> weights = {};
  T keep = 1;
  std::int32_t num_inboxes = 0;
  std::int32_t num_segments = 0;
  std::int32_t num_chunks = 0;
  const GradientDecision* decision = nullptr;
  std::array<Coefficients, kMaxCoefficients> coefficients;
  std::array<SweepSegment, kMaxSegments> segments;
};
/// Bytes that a kernel's parameters may take.
inline constexpr std::size_t kMostParameterBytes = 32764;

/// The index of the segment that a chunk belongs to.
template <class Table>
GOSSAMER_HOST_DEVICE int segment_of(const Table& table, std::int32_t chunk) {
  int low = 0;
  int high = table.num_segments;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.segments[static_cast<std::size_t>(middle)].first_chunk <= chunk ? low : high) = middle;
  }
  return low;
}

/// One thread's share of a chunk. The arithmetic and its order are the same as in the sweep on
/// processors.
template <class Rule, class T, class G, Phase kPhase>
struct SweepThread {
  using Coefficients = typename Rule::template Coefficients<T>;
  using Table = SweepTable<Coefficients, T, G>;

  const Table& table;
  const SweepSegment& segment;
  bool applies;
  T scale;

  /// Works on this thread's elements among [first, first + count) of the segment; `thread` is the
  /// thread's index in its block.
  GOSSAMER_HOST_DEVICE void run(std::int64_t first, std::int64_t count, int thread) const {
    const bool updates = applies && (segment.gradient != nullptr || Rule::kTraits.every_step);
    if (!updates && table.num_inboxes == 0) return;
    std::int64_t done = 0;
    if (segment.aligned) {
      constexpr std::int64_t kStep = kLanes<T>;
      if (thread < count / kStep) {
        const std::int64_t index = first + thread * kStep;
        updates ? update<kStep>(index) : mix_only<kStep>(index);
      }
      done = count / kStep * kStep;
    }
    for (std::int64_t i = done + thread; i < count; i += kSweepThreads) {
      updates ? update<1>(first + i) : mix_only<1>(first + i);
    }
  }

 private:
  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE Pack<T, kCount> mixed(std::int64_t place) const {
    auto x = load_pack<Pack<T, kCount>>(table.source + place);
    if (table.num_inboxes == 0) return x;
    for (std::size_t lane = 0; lane < kCount; ++lane) x.lanes[lane] *= table.keep;
    for (std::size_t k = 0; k < static_cast<std::size_t>(table.num_inboxes); ++k) {
      const auto inbox = load_pack<Pack<T, kCount>>(table.inboxes[k] + place);
      const T weight = table.weights[k];
      for (std::size_t lane = 0; lane < kCount; ++lane) {
        x.lanes[lane] += weight * inbox.lanes[lane];
      }
    }
    return x;
  }

  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void write(std::int64_t place, const Pack<T, kCount>& x) const {
    store_pack(table.parameters + place, x);
    if constexpr (!std::is_same_v<T, G>) {
      Pack<G, kCount> rounded;
      for (std::size_t lane = 0; lane < kCount; ++lane) {
        rounded.lanes[lane] = rounded_to_bfloat16(x.lanes[lane]);
      }
      store_pack(table.rounded + place, rounded);
    }
  }

  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void mix_only(std::int64_t index) const {
    const std::int64_t place = segment.offset + index;
    write<kCount>(place, mixed<kCount>(place));
  }

  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void update(std::int64_t index) const {
    constexpr std::size_t kStates = kNumStates<Rule>;
    constexpr StateMask kReads = Rule::kTraits.reads(kPhase) | Rule::kTraits.rest_states;
    constexpr StateMask kWrites = Rule::kTraits.writes(kPhase);
    const Coefficients& c = table.coefficients[static_cast<std::size_t>(segment.coefficients)];
    const std::int64_t place = segment.offset + index;
    const bool rests = Rule::kTraits.every_step && segment.gradient == nullptr;
    Pack<G, kCount> g{};
    if (!rests) {
      g = load_pack<Pack<G, kCount>>(static_cast<const G*>(segment.gradient) + index);
    }
    std::array<Pack<T, kCount>, kStates> states{};
    for (std::size_t k = 0; k < kStates; ++k) {
      if (kReads >> k & 1U) states[k] = load_pack<Pack<T, kCount>>(table.states[k] + place);
    }
    Pack<T, kCount> x = mixed<kCount>(place);
    Pack<T, kCount> before{};
    if constexpr (Rule::kTraits.sees_before || Rule::kTraits.every_step) {
      before = load_pack<Pack<T, kCount>>(table.parameters + place);
    }
    for (std::size_t lane = 0; lane < kCount; ++lane) {
      std::array<T, kStates> state{};
      for (std::size_t k = 0; k < kStates; ++k) state[k] = states[k].lanes[lane];
      bool applies_rule = true;
      if constexpr (Rule::kTraits.every_step) {
        applies_rule = !rests;
        if (rests) Rule::template rest<T, kPhase>(c, x.lanes[lane], state, before.lanes[lane]);
      }
      if (applies_rule) {
        apply_rule<Rule, T, kPhase>(c, x.lanes[lane], widened(g.lanes[lane]) * scale, state,
                                    before.lanes[lane]);
      }
      for (std::size_t k = 0; k < kStates; ++k) states[k].lanes[lane] = state[k];
    }
    write<kCount>(place, x);
    for (std::size_t k = 0; k < kStates; ++k) {
      const StateMask writes = rests ? Rule::kTraits.rest_states : kWrites;
      if (writes >> k & 1U) store_pack(table.states[k] + place, states[k]);
    }
  }
};

/// The rule that mixes and does nothing else.
struct NoRule {
  static constexpr RuleTraits<> kTraits = {};
  template <class T>
  struct Coefficients {};
  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate&) const {
    return {};
  }
  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>&, T&, T, std::array<T, 0>&) {}
};

/// Whether a rule needs the parameters as they were before mixing.
template <class Rule>
inline constexpr bool kNeedsBefore = Rule::kTraits.sees_before || Rule::kTraits.every_step;

/// Cuts the step of a block into portions of at most kMaxInboxes inboxes, and calls
/// `sweep(rule, update, source)` for each; `source` as in SweepTable. All portions but the last
/// only mix, into `mixed`, a block like the parameters. Rules that do not need the parameters as
/// they were can give the parameters themselves.
template <class Rule, class Sweep>
void in_portions(const Rule& rule, BlockUpdate update, const Block& mixed, const Sweep& sweep) {
  ConstBlock source = update.parameters;
  BlockUpdate part;
  if (update.intake.inboxes.size() > kMaxInboxes) {
    part.parameters = mixed;
    part.segments = update.segments;
    for (Segment& segment : part.segments) {
      segment.gradient = {};
      segment.optimizer = nullptr;
    }
  }
  while (update.intake.inboxes.size() > kMaxInboxes) {
    std::vector<Inbox>& inboxes = update.intake.inboxes;
    const auto end = inboxes.begin() + kMaxInboxes;
    part.intake = {.keep = update.intake.keep, .inboxes = {inboxes.begin(), end}};
    sweep(NoRule{}, part, source);
    inboxes.erase(inboxes.begin(), end);
    update.intake.keep = 1.0;
    source = mixed;
  }
  sweep(rule, update, source);
}

/// Cuts the step of a block into launches. All segments of one phase share a launch, unless they do
/// not fit into one table. Calls `launch(phase, table)` for each; the table is valid during that
/// call.
template <class Rule, class T, class G>
class SweepLaunches {
 public:
  using Coefficients = typename Rule::template Coefficients<T>;
  using Table = SweepTable<Coefficients, T, G>;

  /// The update must have at most kMaxInboxes inboxes. `source`: as in SweepTable. Both references
  /// must outlive the object.
  SweepLaunches(const Rule& rule, const BlockUpdate& update, const ConstBlock& source)
      : rule_(rule), update_(update) {
    table_.parameters = static_cast<T*>(update.parameters.data);
    table_.source = static_cast<const T*>(source.data);
    table_.rounded = static_cast<G*>(update.rounded.data);
    for (std::size_t k = 0; k < table_.states.size(); ++k) {
      table_.states[k] = static_cast<T*>(update.states[k]);
    }
    const std::vector<Inbox>& inboxes = update.intake.inboxes;
    table_.keep = static_cast<T>(update.intake.keep);
    table_.num_inboxes = static_cast<std::int32_t>(inboxes.size());
    for (std::size_t k = 0; k < inboxes.size(); ++k) {
      table_.inboxes[k] = static_cast<const T*>(inboxes[k].block.data);
      table_.weights[k] = static_cast<T>(inboxes[k].weight);
    }
    table_.decision = update.decision;
  }

  template <class Launch>
  void run(const Launch& launch) {
    for (const Phase phase : Rule::kTraits.phases) {
      begin_table();
      for (const Segment& segment : update_.segments) {
        if (segment.numel == 0 || phase_of(segment) != phase) continue;
        if (!fits(segment)) {
          launch(phase, table_);
          begin_table();
        }
        add(segment);
      }
      if (table_.num_segments > 0) launch(phase, table_);
    }
  }

 private:
  struct Kind {
    double weight_decay = 0.0;
    double lr = 0.0;
    std::int64_t step = 0;
    const Optimizer* optimizer = nullptr;
    friend bool operator==(const Kind&, const Kind&) = default;
  };

  void begin_table() {
    table_.num_segments = 0;
    table_.num_chunks = 0;
    kinds_.clear();
  }

  [[nodiscard]] bool fits(const Segment& segment) const {
    const std::int64_t chunks = (segment.numel + kChunk<T> - 1) / kChunk<T>;
    if (table_.num_segments == 0) return true;
    const bool known = std::ranges::find(kinds_, kind_of(segment)) != kinds_.end();
    return table_.num_segments < kMaxSegments && (known || kinds_.size() < kMaxCoefficients) &&
           table_.num_chunks + chunks <= std::int64_t{1} << 30;
  }

  [[nodiscard]] Kind kind_of(const Segment& segment) const {
    return {segment.weight_decay, segment.lr.value_or(update_.lr), segment.step, segment.optimizer};
  }

  [[nodiscard]] const Rule& rule_of(const Segment& segment) const {
    if (segment.optimizer == nullptr) return rule_;
    return *static_cast<const Rule*>(
        static_cast<const OnePassOptimizer*>(segment.optimizer)->rule());
  }

  [[nodiscard]] Phase phase_of(const Segment& segment) const {
    return rule_phase(rule_of(segment), segment.step);
  }

  void add(const Segment& segment) {
    auto kind = std::ranges::find(kinds_, kind_of(segment));
    if (kind == kinds_.end()) {
      const PartRange whole{segment.offset, segment.offset + segment.numel};
      table_.coefficients[kinds_.size()] =
          rule_of(segment).template coefficients<T>(piece_of(update_, segment, whole));
      kind = kinds_.insert(kinds_.end(), kind_of(segment));
    }
    const auto fits = [](const auto* address) { return is_aligned<kLanes<T>>(address); };
    bool aligned = fits(table_.parameters + segment.offset) &&
                   fits(table_.source + segment.offset) &&
                   fits(static_cast<const G*>(segment.gradient.data));
    if (table_.rounded != nullptr) aligned = aligned && fits(table_.rounded + segment.offset);
    for (int k = 0; k < kNumStates<Rule>; ++k) {
      aligned = aligned && fits(table_.states[static_cast<std::size_t>(k)] + segment.offset);
    }
    for (std::size_t k = 0; k < update_.intake.inboxes.size(); ++k) {
      aligned = aligned && fits(table_.inboxes[k] + segment.offset);
    }
    table_.segments[static_cast<std::size_t>(table_.num_segments++)] = {
        .gradient = segment.gradient.data,
        .offset = segment.offset,
        .numel = segment.numel,
        .first_chunk = table_.num_chunks,
        .coefficients = static_cast<std::int16_t>(kind - kinds_.begin()),
        .aligned = aligned};
    table_.num_chunks += static_cast<std::int32_t>((segment.numel + kChunk<T> - 1) / kChunk<T>);
  }

  const Rule& rule_;
  const BlockUpdate& update_;
  Table table_;
  static_assert(sizeof(Table) <= kMostParameterBytes);
  std::vector<Kind> kinds_;
};

}  // namespace gossamer
