#pragma once
// The table of one launch of the sweep kernel: what the launch works on, and how the work is dealt
// out. The table is a kernel parameter (at most 32,764 bytes from CUDA 12.1 on), so a launch needs
// no copy to the device and the host never waits.
//
// A launch works on one block or on several blocks of one rule, because a launch costs 5 to 7
// microseconds beside its bytes on an H200. Example: adamw moves the 8 MiB of a bucket of 1 MiB in
// 2 microseconds. By these figures 200 such buckets take 1.6 ms in 200 launches, and 0.44 ms in 7.
// Each block has its own inboxes, encoded blocks and gradients' factor, so the bits are the bits of
// single launches.
//
// A pass that decodes, encodes or measures has kernels of its own (coded_exchange.hpp), so that
// other passes need no registers for that.
//
// The segments of a block are cut into chunks. The thread blocks of a persistent grid take chunk
// after chunk, and find the segment of a chunk by bisection.
//
// All code here but the kernel itself also runs on processors, so that tests need no GPU.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "base/host_device.hpp"
#include "optim/block.hpp"
#include "optim/cuda/coded_exchange.hpp"
#include "optim/cuda/pack.hpp"
#include "optim/rule.hpp"

namespace gossamer {

inline constexpr int kSweepThreads = 256;
/// Bytes of the widest access.
inline constexpr std::int64_t kVectorBytes = 16;

inline constexpr int kMaxSegments = 512;
inline constexpr int kMaxCoefficients = 16;
/// The inboxes of one block in a launch; in_portions() mixes more.
inline constexpr int kMaxInboxes = 16;
/// The blocks of a launch, and all their inboxes.
inline constexpr int kMaxBlocks = 32;
inline constexpr int kMaxTableInboxes = 64;

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
  /// The place in SweepTable::blocks.
  std::uint8_t block = 0;
  /// True: kLanes elements may be accessed at once at all addresses of the segment.
  bool aligned = false;
};

/// One block of a launch. T: the type of the parameters and states. G: the type of the gradients,
/// with which the model computes; where G is not T, the kernel also writes the rounded copy.
template <class T, class G>
struct SweepBlock {
  T* parameters = nullptr;
  /// The block with which mixing begins: the parameters, or the result of an earlier launch.
  const T* source = nullptr;
  G* rounded = nullptr;
  std::array<T*, kMaxStates> states = {};
  T keep = 1;
  /// The index of the first inbox in SweepTable::inboxes.
  std::int32_t first_inbox = 0;
  std::int32_t num_inboxes = 0;
  const GradientDecision* decision = nullptr;
  /// Used by the kernels of passes that decode, encode or measure.
  CodedExchange<T> coded = {};
};

template <class T>
struct SweepInbox {
  /// A plain block of T, or an encoded block.
  const void* data = nullptr;
  T weight = 0;
};

template <class Coefficients, class T, class G>
struct SweepTable {
  std::int32_t num_blocks = 0;
  std::int32_t num_inboxes = 0;
  std::int32_t num_segments = 0;
  std::int32_t num_chunks = 0;
  std::array<SweepBlock<T, G>, kMaxBlocks> blocks;
  std::array<SweepInbox<T>, kMaxTableInboxes> inboxes;
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

/// What becomes of the gradients of a block.
template <class T>
struct BlockGradients {
  bool apply = true;
  T scale = 1;

  GOSSAMER_HOST_DEVICE static BlockGradients of(const GradientDecision* decision) {
    if (decision == nullptr) return {};
    return {decision->apply != 0, static_cast<T>(decision->factor)};
  }
};

/// One thread's share of a chunk. The arithmetic and its order are the same as in the sweep on
/// processors. kCodes: the pass decodes, encodes or measures.
template <class Rule, class T, class G, Phase kPhase, bool kCodes>
struct SweepThread {
  using Coefficients = typename Rule::template Coefficients<T>;
  using Table = SweepTable<Coefficients, T, G>;

  const Table& table;
  const SweepSegment& segment;
  /// The segment's.
  const SweepBlock<T, G>& block;
  BlockGradients<T> gradients;
  SeenDifferences<T>& seen;

  /// Works on this thread's elements among [first, first + count) of the segment; `thread` is the
  /// thread's index in its block. `first` is even.
  GOSSAMER_HOST_DEVICE void run(std::int64_t first, std::int64_t count, int thread) const {
    const bool updates =
        gradients.apply && (segment.gradient != nullptr || Rule::kTraits.every_step);
    const bool encodes = kCodes && block.coded.encodes;
    if (!updates && block.num_inboxes == 0 && !encodes) return;
    std::int64_t done = 0;
    if (segment.aligned) {
      constexpr std::int64_t kStep = kLanes<T>;
      if (thread < count / kStep) step<kStep>(first + thread * kStep, updates, kStep);
      done = count / kStep * kStep;
    }
    // Two elements may share an encoded byte.
    constexpr std::int64_t kAtOnce = kCodes ? 2 : 1;
    for (std::int64_t i = done + kAtOnce * thread; i < count; i += kAtOnce * kSweepThreads) {
      step_apart<kAtOnce>(first + i, updates, count - i < kAtOnce ? count - i : kAtOnce);
    }
  }

 private:
  [[nodiscard]] GOSSAMER_HOST_DEVICE const SweepInbox<T>& inbox_at(std::size_t k) const {
    return table.inboxes[static_cast<std::size_t>(block.first_inbox) + k];
  }

  /// kCount elements in one access.
  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void step(std::int64_t index, bool updates, std::int64_t count) const {
    const Pack<T, kCount> x = updates ? update<kCount>(index) : mix_only<kCount>(index);
    encode<kCount>(index, x, count);
  }

  /// The first `count` of kCount elements, in an access each.
  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void step_apart(std::int64_t index, bool updates, std::int64_t count) const {
    Pack<T, kCount> all{};
    for (std::int64_t i = 0; i < count; ++i) {
      const Pack<T, 1> x = updates ? update<1>(index + i) : mix_only<1>(index + i);
      all.lanes[static_cast<std::size_t>(i)] = x.lanes[0];
    }
    encode<kCount>(index, all, count);
  }

  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void encode([[maybe_unused]] std::int64_t index,
                                   [[maybe_unused]] const Pack<T, kCount>& x,
                                   [[maybe_unused]] std::int64_t count) const {
    if constexpr (kCodes) {
      if (!block.coded.encodes) return;
      CodedElements<T>{block.coded}.template encode<kCount>(x, segment.offset + index, count);
    }
  }

  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE Pack<T, kCount> mixed(std::int64_t place) const {
    auto x = load_pack<Pack<T, kCount>>(block.source + place);
    if (block.num_inboxes == 0) return x;
    if constexpr (kCodes) {
      if (block.coded.decodes) return mixed_with_differences<kCount>(place, x);
    }
    for (std::size_t lane = 0; lane < kCount; ++lane) x.lanes[lane] *= block.keep;
    for (std::size_t k = 0; k < static_cast<std::size_t>(block.num_inboxes); ++k) {
      const SweepInbox<T>& inbox = inbox_at(k);
      const auto heard = load_pack<Pack<T, kCount>>(static_cast<const T*>(inbox.data) + place);
      if constexpr (kCodes) measure<kCount>(place, heard);
      for (std::size_t lane = 0; lane < kCount; ++lane) {
        x.lanes[lane] += inbox.weight * heard.lanes[lane];
      }
    }
    return x;
  }

  /// keep * x + the differences of encoded inboxes.
  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE Pack<T, kCount> mixed_with_differences(std::int64_t place,
                                                              Pack<T, kCount> x) const {
    Pack<T, kCount> sum{};
    if (block.coded.adds_up) sum = x;
    for (std::size_t k = 0; k < static_cast<std::size_t>(block.num_inboxes); ++k) {
      const SweepInbox<T>& inbox = inbox_at(k);
      CodedElements<T>{block.coded}.template add_difference<kCount>(sum, inbox.data, inbox.weight,
                                                                    place, seen);
    }
    if (block.coded.adds_up) return sum;
    for (std::size_t lane = 0; lane < kCount; ++lane) {
      x.lanes[lane] = block.keep * x.lanes[lane] + sum.lanes[lane];
    }
    return x;
  }

  /// Compares a plain inbox with the parameters.
  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void measure(std::int64_t place, const Pack<T, kCount>& inbox) const {
    if (block.coded.stats == nullptr) return;
    const auto x = load_pack<Pack<T, kCount>>(block.coded.measured + place);
    for (std::size_t lane = 0; lane < kCount; ++lane) {
      seen.add_plain(x.lanes[lane], inbox.lanes[lane]);
    }
  }

  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void write(std::int64_t place, const Pack<T, kCount>& x) const {
    store_pack(block.parameters + place, x);
    if constexpr (!std::is_same_v<T, G>) {
      Pack<G, kCount> rounded;
      for (std::size_t lane = 0; lane < kCount; ++lane) {
        rounded.lanes[lane] = rounded_to_bfloat16(x.lanes[lane]);
      }
      store_pack(block.rounded + place, rounded);
    }
  }

  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE Pack<T, kCount> mix_only(std::int64_t index) const {
    const std::int64_t place = segment.offset + index;
    const Pack<T, kCount> x = mixed<kCount>(place);
    if (block.num_inboxes > 0) write<kCount>(place, x);
    return x;
  }

  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE Pack<T, kCount> update(std::int64_t index) const {
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
      if (kReads >> k & 1U) states[k] = load_pack<Pack<T, kCount>>(block.states[k] + place);
    }
    Pack<T, kCount> x = mixed<kCount>(place);
    Pack<T, kCount> before{};
    if constexpr (Rule::kTraits.sees_before || Rule::kTraits.every_step) {
      before = load_pack<Pack<T, kCount>>(block.parameters + place);
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
        apply_rule<Rule, T, kPhase>(c, x.lanes[lane], widened(g.lanes[lane]) * gradients.scale,
                                    state, before.lanes[lane]);
      }
      for (std::size_t k = 0; k < kStates; ++k) states[k].lanes[lane] = state[k];
    }
    write<kCount>(place, x);
    for (std::size_t k = 0; k < kStates; ++k) {
      const StateMask writes = rests ? Rule::kTraits.rest_states : kWrites;
      if (writes >> k & 1U) store_pack(block.states[k] + place, states[k]);
    }
    return x;
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

/// Whether a pass needs the kernels that decode, encode or measure.
inline bool codes(const ExchangeWork& exchange) {
  return exchange.coding.codec != nullptr || exchange.stats != nullptr;
}

/// A part of the step of a block that mixes in at most kMaxInboxes inboxes.
struct Portion {
  const BlockUpdate& update;
  /// The block of SweepTable::source.
  ConstBlock source = {};
  /// The block of CodedExchange::measured.
  ConstBlock measured = {};
  bool adds_up = false;
};

/// The portion that is the whole step.
inline Portion whole(const BlockUpdate& update) {
  return {update, update.parameters, update.parameters};
}

/// Whether in_portions() needs a block of its own for what it has mixed.
template <class Rule>
bool needs_mixed_block(const BlockUpdate& update) {
  const ExchangeWork& exchange = update.intake.exchange;
  return update.intake.inboxes.size() > kMaxInboxes &&
         (kNeedsBefore<Rule> || exchange.coding.decodes || exchange.stats != nullptr);
}

/// Cuts the step of a block into portions, and calls `sweep(rule, portion)` for each. All portions
/// but the last only mix, into `mixed`, a block like the parameters. `mixed` may be the parameters
/// themselves unless needs_mixed_block(). Encoded inboxes are first added up in `mixed`, which then
/// is 0 before, and the last portion mixes in this sum.
template <class Rule, class Sweep>
void in_portions(const Rule& rule, BlockUpdate update, const Block& mixed, const Sweep& sweep) {
  const ConstBlock measured = update.parameters;
  ConstBlock source = update.parameters;
  std::vector<Inbox>& inboxes = update.intake.inboxes;
  ExchangeWork& exchange = update.intake.exchange;
  if (inboxes.size() > kMaxInboxes) {
    const bool decodes = exchange.coding.decodes;
    BlockUpdate part;
    part.parameters = mixed;
    part.simd = update.simd;
    part.segments = update.segments;
    for (Segment& segment : part.segments) {
      segment.gradient = {};
      segment.optimizer = nullptr;
    }
    part.intake.exchange = exchange;
    part.intake.exchange.coding.encodes = false;
    if (decodes) source = mixed;
    while (decodes ? !inboxes.empty() : inboxes.size() > kMaxInboxes) {
      const auto end = inboxes.begin() + std::min<std::ptrdiff_t>(kMaxInboxes, std::ssize(inboxes));
      part.intake.keep = decodes ? 1.0 : update.intake.keep;
      part.intake.inboxes = {inboxes.begin(), end};
      sweep(NoRule{}, Portion{part, source, measured, decodes});
      inboxes.erase(inboxes.begin(), end);
      if (decodes) continue;
      update.intake.keep = 1.0;
      source = mixed;
    }
    if (decodes) {
      source = update.parameters;
      inboxes = {{mixed, 1.0}};
      exchange.coding.decodes = false;
      exchange.stats.reset();
    }
  }
  sweep(rule, Portion{update, source, measured});
}

/// The number of first updates, at least one, that may share a launch.
inline std::size_t num_alike(std::span<const BlockUpdate> updates) {
  const BlockUpdate& first = updates.front();
  const auto is_alike = [&first](const BlockUpdate& update) {
    return update.intake.inboxes.size() <= kMaxInboxes &&
           update.parameters.dtype == first.parameters.dtype &&
           (update.rounded.data == nullptr) == (first.rounded.data == nullptr) &&
           codes(update.intake.exchange) == codes(first.intake.exchange);
  };
  if (!is_alike(first)) return 1;
  return static_cast<std::size_t>(std::ranges::find_if_not(updates, is_alike) - updates.begin());
}

/// Cuts the steps of blocks into launches. All segments of one phase share a launch, unless they do
/// not fit into one table. Calls `launch(phase, table)` for each; the table is valid during that
/// call.
template <class Rule, class T, class G>
class SweepLaunches {
 public:
  using Coefficients = typename Rule::template Coefficients<T>;
  using Table = SweepTable<Coefficients, T, G>;

  /// The rule, the portions and their updates must outlive the object. If there are several
  /// portions, num_alike() says which. Throws ConfigError for a codec without kernels.
  SweepLaunches(const Rule& rule, std::span<const Portion> portions) : rule_(rule) {
    parts_.reserve(portions.size());
    for (const Portion& portion : portions) parts_.emplace_back(portion);
  }

  template <class Launch>
  void run(const Launch& launch) {
    for (const Phase phase : Rule::kTraits.phases) {
      begin_table();
      for (const Part& part : parts_) {
        for (const Segment& segment : part.update.segments) {
          if (segment.numel == 0 || phase_of(segment) != phase) continue;
          if (!fits(part, segment)) {
            launch(phase, table_);
            begin_table();
          }
          add(part, segment);
        }
      }
      if (table_.num_segments > 0) launch(phase, table_);
    }
  }

 private:
  /// A block, before it has a place in a table.
  struct Part {
    explicit Part(const Portion& portion) : update(portion.update) {
      block.parameters = static_cast<T*>(update.parameters.data);
      block.source = static_cast<const T*>(portion.source.data);
      block.rounded = static_cast<G*>(update.rounded.data);
      for (std::size_t k = 0; k < block.states.size(); ++k) {
        block.states[k] = static_cast<T*>(update.states[k]);
      }
      block.keep = static_cast<T>(update.intake.keep);
      block.num_inboxes = static_cast<std::int32_t>(update.intake.inboxes.size());
      for (const Inbox& inbox : update.intake.inboxes) {
        inboxes.push_back({inbox.block.data, static_cast<T>(inbox.weight)});
      }
      block.decision = update.decision;
      if (codes(update.intake.exchange)) set_coded(portion);
    }

    void set_coded(const Portion& portion) {
      const ExchangeWork& exchange = update.intake.exchange;
      const Coding& coding = exchange.coding;
      CodedExchange<T>& coded = block.coded;
      coded.measured = static_cast<const T*>(portion.measured.data);
      if (exchange.stats) coded.stats = exchange.stats->on_device();
      if (coding.codec == nullptr) return;
      coded.codec = kernels_of(*coding.codec);
      coded.decodes = coding.decodes;
      coded.encodes = coding.encodes;
      coded.adds_up = portion.adds_up;
      coded.own = static_cast<std::uint8_t*>(coding.own.data);
      coded.scale = static_cast<T>(std::ldexp(1.0, -coding.next_grid.exponent));
      coded.seed = internal::seed_of(coding.next_grid);
      coded.place = static_cast<std::uint32_t>(coding.next_grid.first);
      coded.step = std::ldexp(1.0F, coding.grid.exponent);
      require_encoded(*coding.codec, coding.own, update.parameters.numel);
      for (const Segment& segment : update.segments) require_grain(segment.offset);
      if (!coding.decodes) return;
      for (std::size_t k = 0; k < inboxes.size(); ++k) {
        const Inbox& inbox = update.intake.inboxes[k];
        require_encoded(*coding.codec, inbox.block, update.parameters.numel);
        inboxes[k].weight = coded_weight<T>(coded.codec, inbox.weight, coding.grid);
      }
    }

    const BlockUpdate& update;
    SweepBlock<T, G> block;
    std::vector<SweepInbox<T>> inboxes;
  };

  struct Kind {
    double weight_decay = 0.0;
    double lr = 0.0;
    double step_scale = 1.0;
    std::int64_t step = 0;
    const Optimizer* optimizer = nullptr;
    friend bool operator==(const Kind&, const Kind&) = default;
  };

  void begin_table() {
    table_.num_blocks = 0;
    table_.num_inboxes = 0;
    table_.num_segments = 0;
    table_.num_chunks = 0;
    last_part_ = nullptr;
    kinds_.clear();
  }

  [[nodiscard]] bool fits(const Part& part, const Segment& segment) const {
    const std::int64_t chunks = (segment.numel + kChunk<T> - 1) / kChunk<T>;
    if (table_.num_segments == 0) return true;
    const bool known = std::ranges::find(kinds_, kind_of(part, segment)) != kinds_.end();
    return table_.num_segments < kMaxSegments && (known || kinds_.size() < kMaxCoefficients) &&
           table_.num_chunks + chunks <= std::int64_t{1} << 30 &&
           (last_part_ == &part || has_room_for(part));
  }

  [[nodiscard]] bool has_room_for(const Part& part) const {
    return table_.num_blocks < kMaxBlocks &&
           table_.num_inboxes + part.block.num_inboxes <= kMaxTableInboxes;
  }

  [[nodiscard]] Kind kind_of(const Part& part, const Segment& segment) const {
    return {segment.weight_decay, segment.lr.value_or(part.update.lr), part.update.step_scale,
            segment.step, segment.optimizer};
  }

  [[nodiscard]] const Rule& rule_of(const Segment& segment) const {
    if (segment.optimizer == nullptr) return rule_;
    return *static_cast<const Rule*>(
        static_cast<const OnePassOptimizer*>(segment.optimizer)->rule());
  }

  [[nodiscard]] Phase phase_of(const Segment& segment) const {
    return rule_phase(rule_of(segment), segment.step);
  }

  /// The place of a block in the table, which it gets with its first segment.
  std::uint8_t place_of(const Part& part) {
    if (last_part_ != &part) {
      last_part_ = &part;
      auto& block = table_.blocks[static_cast<std::size_t>(table_.num_blocks++)] = part.block;
      block.first_inbox = table_.num_inboxes;
      std::ranges::copy(part.inboxes, table_.inboxes.begin() + table_.num_inboxes);
      table_.num_inboxes += block.num_inboxes;
    }
    return static_cast<std::uint8_t>(table_.num_blocks - 1);
  }

  /// The place of a segment's coefficients in the table.
  std::int16_t coefficients_of(const Part& part, const Segment& segment) {
    auto kind = std::ranges::find(kinds_, kind_of(part, segment));
    if (kind == kinds_.end()) {
      const PartRange whole{segment.offset, segment.offset + segment.numel};
      table_.coefficients[kinds_.size()] =
          rule_of(segment).template coefficients<T>(piece_of(part.update, segment, whole));
      kind = kinds_.insert(kinds_.end(), kind_of(part, segment));
    }
    return static_cast<std::int16_t>(kind - kinds_.begin());
  }

  static bool is_aligned_in(const Part& part, const Segment& segment) {
    const auto fits = [](const auto* address) { return is_aligned<kLanes<T>>(address); };
    const SweepBlock<T, G>& block = part.block;
    bool aligned = fits(block.parameters + segment.offset) && fits(block.source + segment.offset) &&
                   fits(static_cast<const G*>(segment.gradient.data));
    if (block.rounded != nullptr) aligned = aligned && fits(block.rounded + segment.offset);
    for (int k = 0; k < kNumStates<Rule>; ++k) {
      aligned = aligned && fits(block.states[static_cast<std::size_t>(k)] + segment.offset);
    }
    if (block.coded.decodes) return aligned;
    return aligned && std::ranges::all_of(part.inboxes, [&](const SweepInbox<T>& inbox) {
             return fits(static_cast<const T*>(inbox.data) + segment.offset);
           });
  }

  void add(const Part& part, const Segment& segment) {
    table_.segments[static_cast<std::size_t>(table_.num_segments++)] = {
        .gradient = segment.gradient.data,
        .offset = segment.offset,
        .numel = segment.numel,
        .first_chunk = table_.num_chunks,
        .coefficients = coefficients_of(part, segment),
        .block = place_of(part),
        .aligned = is_aligned_in(part, segment)};
    table_.num_chunks += static_cast<std::int32_t>((segment.numel + kChunk<T> - 1) / kChunk<T>);
  }

  const Rule& rule_;
  std::vector<Part> parts_;
  /// The block that the table's last segment belongs to.
  const Part* last_part_ = nullptr;
  Table table_;
  static_assert(sizeof(Table) <= kMostParameterBytes);
  std::vector<Kind> kinds_;
};

}  // namespace gossamer
