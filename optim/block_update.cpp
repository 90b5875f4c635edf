#include "optim/block_update.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "optim/convert.hpp"
#include "optim/cuda/sweep.hpp"
#include "optim/flush_denormals.hpp"
#include "optim/stream_copy.hpp"

namespace gossamer {
namespace {

// Elements. Below this size, waking the other threads takes longer than sharing the work saves.
constexpr std::int64_t kLeastShared = 64 * 1024;
// Elements. Parts begin at a multiple of this, so that no two threads write the same cache line.
constexpr std::int64_t kGrain = 1024;

// Elements. A pass with work for the exchange decodes, updates, and encodes or copies in parts that
// stay in the cache.
constexpr std::int64_t kCodedPart = 4096;

/// Calls work(part) for the parts of a range that are decoded, updated and encoded one by one.
template <class Work>
void for_coded_parts(PartRange range, const Work& work) {
  for (std::int64_t first = range.first; first < range.last; first += kCodedPart) {
    work(PartRange{first, std::min(first + kCodedPart, range.last)});
  }
}

/// The largest difference between an element of `x` and of `heard`, which have the same type and
/// size. Infinite where an element is not a number.
template <class T>
float largest_difference(std::span<const T> x, std::span<const T> heard) {
  T largest{0};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const T difference = std::abs(x[i] - heard[i]);
    if (std::isnan(difference)) return std::numeric_limits<float>::infinity();
    largest = difference > largest ? difference : largest;
  }
  return rounded_to_float(static_cast<double>(largest));
}

/// Adds the differences between a part of a block and the plain inboxes of this part.
void measure(const ConstBlock& x, std::span<const Inbox> inboxes, DifferenceStats& stats) {
  for (const Inbox& inbox : inboxes) {
    stats.add(x.dtype == DType::kFloat64
                  ? largest_difference(x.as<double>(), inbox.block.as<double>())
                  : largest_difference(x.as<float>(), inbox.block.as<float>()),
              0);
  }
}

/// to <- the sum of inboxes of the same type and size, added up in their order.
template <class T>
void add_up(std::span<T> to, std::span<const Inbox> inboxes) {
  std::ranges::copy(inboxes.front().block.as<T>(), to.begin());
  for (const Inbox& inbox : inboxes.subspan(1)) {
    const T* const from = inbox.block.as<T>().data();
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }
}

/// Memory on the stack for the mixed-in part of one part of a coded block.
struct MixedIn {
  alignas(64) std::array<std::byte, kCodedPart * sizeof(double)> memory;

  /// Returns one inbox that stands for `inboxes` under ExchangeWork::sums. All are of one part.
  Inbox add_up(std::span<const Inbox> inboxes) {
    const Inbox& first = inboxes.front();
    const Block result{memory.data(), first.block.numel, first.block.dtype, {}};
    if (result.dtype == DType::kFloat64) {
      gossamer::add_up(result.as<double>(), inboxes);
    } else {
      gossamer::add_up(result.as<float>(), inboxes);
    }
    return {result, first.weight};
  }

  /// Returns sum of weight * (decoded(inbox) - decoded(own)) over the elements from `first` on, as
  /// `numel` elements of the type `dtype`.
  Block differences(std::span<const Inbox> inboxes, const ExchangeWork& exchange, PartRange range,
                    DType dtype, SimdPath simd) {
    const Coding& coding = exchange.coding;
    const std::int64_t numel = range.last - range.first;
    const Block result{memory.data(), numel, dtype, {}};
    std::memset(result.data, 0, static_cast<std::size_t>(result.bytes()));
    const ConstBlock own = encoded_part(*coding.codec, coding.own, range.first, numel);
    for (const Inbox& inbox : inboxes) {
      const ConstBlock heard = encoded_part(*coding.codec, inbox.block, range.first, numel);
      const Grid grid = coding.grid.from(range.first);
      const DifferenceRange found =
          coding.codec->add_difference(result, {heard, inbox.weight}, own, grid, simd);
      if (!exchange.stats) continue;
      // At the end of the range the size of the difference is unknown.
      const float largest =
          coding.codec->most_steps() > 0 && found.largest_steps >= coding.codec->most_steps()
              ? std::numeric_limits<float>::infinity()
              : std::ldexp(static_cast<float>(found.largest_steps), grid.exponent);
      exchange.stats->add(largest, found.num_wide);
    }
    return result;
  }
};

/// The passes of one thread over a block.
class BlockPass {
 public:
  /// All references must outlive the object.
  BlockPass(const OnePassOptimizer& optimizer, const BlockUpdate& update,
            const GradientDecision& decision)
      : optimizer_(optimizer),
        update_(update),
        decision_(decision),
        inboxes_(update.intake.inboxes) {}

  /// The step of the elements [range.first, range.last) of the block.
  void run(PartRange range) {
    const FlushDenormals flush;
    for (const Segment& segment : update_.segments) {
      const PartRange part{std::max(range.first, segment.offset),
                           std::min(range.last, segment.offset + segment.numel)};
      if (part.first >= part.last) continue;
      if (update_.intake.exchange.is_empty()) {
        step(segment, part, update_.intake.keep, plain_inboxes(part));
      } else {
        step_with_exchange(segment, part);
      }
    }
  }

 private:
  /// The step of a piece of a segment. `inboxes` hold plain values of its elements.
  void step(const Segment& segment, PartRange range, double keep,
            std::span<const Inbox> inboxes) const {
    ParameterUpdate piece = piece_of(update_, segment, range);
    piece.keep = keep;
    piece.inboxes = inboxes;
    piece.gradient_scale = decision_.factor;
    if (decision_.apply == 0) return mix(piece);
    optimizer_of(segment).update(piece);
  }

  [[nodiscard]] const OnePassOptimizer& optimizer_of(const Segment& segment) const {
    return segment.optimizer == nullptr ? optimizer_
                                        : static_cast<const OnePassOptimizer&>(*segment.optimizer);
  }

  /// The step of a part of a segment, and the work of the exchange on it.
  void step_with_exchange(const Segment& segment, PartRange whole) {
    const ExchangeWork& exchange = update_.intake.exchange;
    const Coding& coding = exchange.coding;
    MixedIn mixed_in;
    for_coded_parts(whole, [&](PartRange part) {
      step_with_mixed_in(segment, part, mixed_in);
      const std::int64_t numel = part.last - part.first;
      const ConstBlock x = part_of(update_.parameters, part.first, numel);
      if (coding.encodes) {
        coding.codec->encode(encoded_part(*coding.codec, coding.own, part.first, numel), x,
                             coding.next_grid.from(part.first), update_.simd);
      }
      if (exchange.copy.data != nullptr) {
        stream_copy(part_of(exchange.copy, part.first, numel), x);
      }
    });
  }

  /// The step of a piece. Its inboxes stand for what they hold: encoded values, or a sum to make.
  void step_with_mixed_in(const Segment& segment, PartRange part, MixedIn& mixed_in) {
    const ExchangeWork& exchange = update_.intake.exchange;
    if (exchange.coding.decodes) {
      const Block sum = mixed_in.differences(update_.intake.inboxes, exchange, part,
                                             update_.parameters.dtype, update_.simd);
      return step(segment, part, update_.intake.keep, std::array{Inbox{sum, 1.0}});
    }
    const std::span<const Inbox> inboxes = plain_inboxes(part);
    if (exchange.stats) {
      measure(part_of(update_.parameters, part.first, part.last - part.first), inboxes,
              *exchange.stats);
    }
    if (exchange.sums && !inboxes.empty()) {
      return step(segment, part, update_.intake.keep, std::array{mixed_in.add_up(inboxes)});
    }
    step(segment, part, update_.intake.keep, inboxes);
  }

  /// The inboxes' elements of a part; valid until the next call.
  [[nodiscard]] std::span<const Inbox> plain_inboxes(PartRange part) {
    for (std::size_t k = 0; k < inboxes_.size(); ++k) {
      inboxes_[k].block =
          part_of(update_.intake.inboxes[k].block, part.first, part.last - part.first);
    }
    return inboxes_;
  }

  const OnePassOptimizer& optimizer_;
  const BlockUpdate& update_;
  const GradientDecision& decision_;
  /// As many as in the intake, for the elements of one piece.
  std::vector<Inbox> inboxes_;
};

/// A pass over a whole block without an optimizer.
BlockUpdate pass_over(const Block& x, Intake intake) {
  BlockUpdate update;
  update.parameters = x;
  update.segments = {{.numel = x.numel}};
  update.intake = std::move(intake);
  return update;
}

/// Whether there is a gradient of the parameters' type, or of another one.
bool has_gradient(const BlockUpdate& update, bool of_the_parameters_type) {
  return std::ranges::any_of(update.segments, [&](const Segment& segment) {
    return segment.gradient.data != nullptr &&
           (segment.gradient.dtype == update.parameters.dtype) == of_the_parameters_type;
  });
}

void wait_for_all(const ExchangeWork& exchange, std::int64_t numel) {
  if (!exchange.wait_for_more) return;
  while (exchange.wait_for_more() < numel) continue;
}

void update_now(const OnePassOptimizer& optimizer, const BlockUpdate& update) {
  const GradientDecision decision =
      update.decision == nullptr ? GradientDecision{} : *update.decision;
  const std::int64_t numel = update.parameters.numel;
  const auto& wait_for_more = update.intake.exchange.wait_for_more;
  PartRange part;
  do {
    part = {part.last, wait_for_more ? wait_for_more() : numel};
    if (update.pool != nullptr && part.last - part.first >= kLeastShared) {
      update.pool->share(part.last - part.first, kGrain, [&](const PartRange& range) {
        BlockPass(optimizer, update, decision)
            .run({part.first + range.first, part.first + range.last});
      });
    } else {
      BlockPass(optimizer, update, decision).run(part);
    }
  } while (part.last < numel);
}

}  // namespace

ParameterUpdate piece_of(const BlockUpdate& update, const Segment& segment, PartRange range) {
  const std::int64_t numel = range.last - range.first;
  ParameterUpdate piece{.parameter = part_of(update.parameters, range.first, numel),
                        .step = segment.step,
                        .lr = segment.lr.value_or(update.lr),
                        .step_scale = update.step_scale,
                        .weight_decay = segment.weight_decay,
                        .simd = update.simd};
  if (segment.gradient.data != nullptr) {
    piece.gradient = part_of(segment.gradient, range.first - segment.offset, numel);
  }
  if (update.rounded.data != nullptr) piece.rounded = part_of(update.rounded, range.first, numel);
  const std::int64_t skipped = range.first * size_of(update.parameters.dtype);
  for (std::size_t k = 0; k < update.states.size(); ++k) {
    if (update.states[k] == nullptr) continue;
    piece.states[k] = static_cast<std::byte*>(update.states[k]) + skipped;
  }
  return piece;
}

void prepare_device(Stream& stream) {
  if (!stream.on_host()) cuda_load_kernels(stream);
}

void enqueue_update(Stream& stream, const Optimizer& optimizer, BlockUpdate update) {
  std::vector<BlockUpdate> updates;
  updates.push_back(std::move(update));
  enqueue_updates(stream, optimizer, std::move(updates));
}

void enqueue_updates(Stream& stream, const Optimizer& optimizer, std::vector<BlockUpdate> updates) {
  struct Rounding {
    Block to;
    ConstBlock from;
  };
  std::vector<Rounding> later;
  for (BlockUpdate& update : updates) {
    const bool wide = has_gradient(update, true);
    const bool rounds = update.rounded.data != nullptr;
    if (has_gradient(update, false) && (!rounds || wide)) {
      throw std::logic_error("enqueue_update: the gradients' types do not fit the parameters'");
    }
    if (!rounds || !wide) continue;
    later.push_back({std::exchange(update.rounded, {}), update.parameters});
  }
  optimizer.enqueue(stream, std::move(updates));
  for (const Rounding& rounding : later) enqueue_convert(stream, rounding.to, rounding.from);
}

void OnePassOptimizer::enqueue(Stream& stream, std::vector<BlockUpdate> updates) const {
  if (!stream.on_host()) return update_on_device(stream, updates);
  for (BlockUpdate& update : updates) {
    stream.run([this, update = std::move(update)] { update_now(*this, update); });
  }
}

void mix(const Block& x, double keep, std::span<const Inbox> inboxes, const ExchangeWork& exchange,
         SimdPath simd) {
  if (inboxes.empty()) return;
  if (exchange.sums) throw std::logic_error("mix: inboxes to add up, which only updates do");
  wait_for_all(exchange, x.numel);
  if (!exchange.coding.decodes) {
    if (exchange.stats) measure(x, inboxes, *exchange.stats);
    return mix(x, keep, inboxes, simd);
  }
  const FlushDenormals flush;
  MixedIn mixed_in;
  for_coded_parts({0, x.numel}, [&](PartRange part) {
    const Block sum = mixed_in.differences(inboxes, exchange, part, x.dtype, simd);
    mix(part_of(x, part.first, part.last - part.first), keep, std::array{Inbox{sum, 1.0}}, simd);
  });
}

void enqueue_mix(Stream& stream, const Block& x, double keep, std::vector<Inbox> inboxes,
                 const ExchangeWork& exchange, SimdPath simd) {
  if (inboxes.empty()) return;
  if (!stream.on_host()) {
    Intake intake{.keep = keep, .inboxes = std::move(inboxes), .exchange = exchange};
    intake.exchange.coding.encodes = false;
    return cuda_mix(stream, {pass_over(x, std::move(intake))});
  }
  stream.run([x, keep, inboxes = std::move(inboxes), exchange, simd] {
    mix(x, keep, inboxes, exchange, simd);
  });
}

void enqueue_encode(Stream& stream, const Coding& coding, const ConstBlock& x, SimdPath simd) {
  if (!stream.on_host()) {
    // Without inboxes the kernel only reads the block.
    const Block block{const_cast<void*>(x.data), x.numel, x.dtype, x.device};  // NOLINT
    Intake intake{.exchange = {.coding = coding}};
    intake.exchange.coding.decodes = false;
    intake.exchange.coding.encodes = true;
    return cuda_mix(stream, {pass_over(block, std::move(intake))});
  }
  stream.run([coding, x, simd] {
    const FlushDenormals flush;
    coding.codec->encode(coding.own, x, coding.next_grid, simd);
  });
}

}  // namespace gossamer
