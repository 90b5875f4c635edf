#include "gossamer/core/engine/bucket.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "gossamer/core/base/text.hpp"
#include "gossamer/optim/flush_denormals.hpp"

namespace gossamer {
namespace {

// Elements. Waking the other threads takes longer than they save on less.
constexpr std::int64_t kLeastShared = 64 * 1024;
// Parts begin at a multiple of this, so that no two threads write one cache line.
constexpr std::int64_t kGrain = 1024;

}  // namespace

Block part_of(const Block& block, std::int64_t offset, std::int64_t numel) {
  return {static_cast<std::byte*>(block.data) + offset * size_of(block.dtype), numel, block.dtype,
          block.device};
}

ConstBlock part_of(const ConstBlock& block, std::int64_t offset, std::int64_t numel) {
  return {static_cast<const std::byte*>(block.data) + offset * size_of(block.dtype), numel,
          block.dtype, block.device};
}

Bucket::Bucket(std::int64_t index, BucketSpec spec, std::span<const ParameterInfo> parameters,
               Buffer memory, int num_states)
    : index_(index), spec_(std::move(spec)), memory_(std::move(memory)) {
  if (memory_.block().numel != spec_.numel || memory_.block().dtype != spec_.dtype) {
    throw std::logic_error("Bucket: the memory does not fit the plan");
  }
  for (int k = 0; k < num_states; ++k) states_.emplace_back(spec_.numel, spec_.dtype);
  for (const BucketEntry& entry : spec_.entries) {
    const ParameterInfo& info = parameters[static_cast<std::size_t>(entry.parameter)];
    slots_.push_back({.name = info.name,
                      .parameter = part_of(memory_.block(), entry.offset, info.numel()),
                      .offset = entry.offset,
                      .weight_decay = info.weight_decay});
  }
}

void Bucket::offer(std::int64_t entry, ConstBlock gradient) {
  Slot& slot = slots_.at(static_cast<std::size_t>(entry));
  if (gradient.numel != slot.parameter.numel || gradient.dtype != slot.parameter.dtype) {
    throw std::logic_error(concat("the gradient of ", slot.name, " has another size or type"));
  }
  if (gradient.data == nullptr) {
    if (gradient.numel > 0)
      throw std::logic_error(concat("the gradient of ", slot.name, " is null"));
    // Empty gradients may be null, which otherwise means that there is none.
    gradient.data = slot.parameter.data;
  }
  if (updated_ || slot.gradient.data != nullptr) {
    throw std::logic_error(
        concat("parameter ", slot.name, " got a second gradient in one step; call ",
               "set_accumulate_grad(true) before every backward but the last of a step"));
  }
  slot.gradient = gradient;
  ++num_arrived_;
}

void Bucket::replace_gradient(std::int64_t entry, ConstBlock gradient) {
  slots_.at(static_cast<std::size_t>(entry)).gradient = gradient;
}

void Bucket::drop_gradients() {
  for (Slot& slot : slots_) slot.gradient = {};
}

void Bucket::set_squares(std::int64_t entry, double squares) {
  slots_.at(static_cast<std::size_t>(entry)).squares = squares;
}

double Bucket::squares() const {
  double sum = 0.0;
  for (const Slot& slot : slots_) sum += slot.squares;
  return sum;
}

void Bucket::update_range(const Optimizer& optimizer, const UpdateContext& context,
                          PartRange range) {
  const FlushDenormals flush;
  std::vector<Inbox> inboxes(context.inboxes.begin(), context.inboxes.end());
  for (const Slot& slot : slots_) {
    const std::int64_t first = std::max(range.first, slot.offset);
    const std::int64_t last = std::min(range.last, slot.offset + slot.parameter.numel);
    if (first >= last) continue;
    const std::int64_t numel = last - first;
    ParameterUpdate step{.parameter = part_of(memory_.block(), first, numel),
                         .keep = context.keep,
                         .inboxes = inboxes,
                         .step = slot.num_updates + 1,
                         .lr = context.lr,
                         .weight_decay = slot.weight_decay,
                         .gradient_scale = context.gradient_scale,
                         .simd = context.simd};
    if (slot.gradient.data != nullptr) {
      step.gradient = part_of(slot.gradient, first - slot.offset, numel);
    }
    for (std::size_t k = 0; k < inboxes.size(); ++k) {
      inboxes[k].block = part_of(context.inboxes[k].block, first, numel);
    }
    for (std::size_t k = 0; k < states_.size(); ++k) {
      step.states[k] = part_of(states_[k].block(), first, numel).data;
    }
    optimizer.update(step);
  }
}

void Bucket::update(const Optimizer& optimizer, const UpdateContext& context) {
  if (context.pool != nullptr && spec_.numel >= kLeastShared) {
    context.pool->share(spec_.numel, kGrain,
                        [&](const PartRange& range) { update_range(optimizer, context, range); });
  } else {
    update_range(optimizer, context, {0, spec_.numel});
  }
  for (Slot& slot : slots_) {
    if (slot.gradient.data != nullptr) ++slot.num_updates;
    slot.gradient = {};
  }
  updated_ = true;
}

void Bucket::begin_step() {
  for (Slot& slot : slots_) slot.squares = 0.0;
  num_arrived_ = 0;
  updated_ = false;
}

}  // namespace gossamer
