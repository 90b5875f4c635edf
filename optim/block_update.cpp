#include "optim/block_update.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "optim/convert.hpp"
#include "optim/cuda_kernels.hpp"
#include "optim/flush_denormals.hpp"

namespace gossamer {
namespace {

// Elements. Below this size, waking the other threads takes longer than sharing the work saves.
constexpr std::int64_t kLeastShared = 64 * 1024;
// Elements. Parts begin at a multiple of this, so that no two threads write the same cache line.
constexpr std::int64_t kGrain = 1024;

/// The step of the elements [range.first, range.last) of the block.
void update_range(const Optimizer& optimizer, const BlockUpdate& update,
                  const GradientDecision& decision, PartRange range) {
  const FlushDenormals flush;
  std::vector<Inbox> inboxes = update.inboxes;
  for (const Segment& segment : update.segments) {
    const std::int64_t first = std::max(range.first, segment.offset);
    const std::int64_t last = std::min(range.last, segment.offset + segment.numel);
    if (first >= last) continue;
    const std::int64_t numel = last - first;
    ParameterUpdate step{.parameter = part_of(update.parameters, first, numel),
                         .keep = update.keep,
                         .inboxes = inboxes,
                         .step = segment.step,
                         .lr = update.lr,
                         .weight_decay = segment.weight_decay,
                         .gradient_scale = decision.factor,
                         .simd = update.simd};
    if (update.rounded.data != nullptr) step.rounded = part_of(update.rounded, first, numel);
    if (segment.gradient.data != nullptr) {
      step.gradient = part_of(segment.gradient, first - segment.offset, numel);
    }
    for (std::size_t k = 0; k < inboxes.size(); ++k) {
      inboxes[k].block = part_of(update.inboxes[k].block, first, numel);
    }
    const std::int64_t skipped = first * size_of(update.parameters.dtype);
    for (std::size_t k = 0; k < static_cast<std::size_t>(optimizer.num_states()); ++k) {
      step.states[k] = static_cast<std::byte*>(update.states[k]) + skipped;
    }
    if (decision.apply != 0) {
      optimizer.update(step);
    } else {
      mix(step);
    }
  }
}

void update_now(const Optimizer& optimizer, const BlockUpdate& update) {
  const GradientDecision decision =
      update.decision == nullptr ? GradientDecision{} : *update.decision;
  const std::int64_t numel = update.parameters.numel;
  if (update.pool != nullptr && numel >= kLeastShared) {
    update.pool->share(numel, kGrain, [&](const PartRange& range) {
      update_range(optimizer, update, decision, range);
    });
  } else {
    update_range(optimizer, update, decision, {0, numel});
  }
}

}  // namespace

void enqueue_update(Stream& stream, const Optimizer& optimizer, BlockUpdate update) {
  const auto has_gradient = [&update](bool of_the_parameters_type) {
    return std::ranges::any_of(update.segments, [&](const Segment& segment) {
      return segment.gradient.data != nullptr &&
             (segment.gradient.dtype == update.parameters.dtype) == of_the_parameters_type;
    });
  };
  const bool rounds = update.rounded.data != nullptr;
  const bool wide = has_gradient(true);
  if (has_gradient(false) && (!rounds || wide)) {
    throw std::logic_error("enqueue_update: the gradients' types do not fit the parameters'");
  }
  if (rounds && wide) {
    const Block parameters = update.parameters;
    const Block rounded = std::exchange(update.rounded, {});
    enqueue_update(stream, optimizer, std::move(update));
    return enqueue_convert(stream, rounded, parameters);
  }
  if (!stream.on_host()) return optimizer.update_on_device(stream, update);
  stream.run([&optimizer, update = std::move(update)] { update_now(optimizer, update); });
}

void enqueue_mix(Stream& stream, const Block& x, double keep, std::vector<Inbox> inboxes,
                 SimdPath simd) {
  if (inboxes.empty()) return;
  if (!stream.on_host()) return cuda_mix(stream, x, keep, inboxes);
  stream.run([x, keep, inboxes = std::move(inboxes), simd] { mix(x, keep, inboxes, simd); });
}

}  // namespace gossamer
