#include "gossamer/core/engine/bucket.hpp"

#include <stdexcept>
#include <utility>

#include "gossamer/core/base/text.hpp"
#include "gossamer/optim/flush_denormals.hpp"

namespace gossamer {

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

ConstBlock Bucket::gradient(std::int64_t entry) const {
  return slots_.at(static_cast<std::size_t>(entry)).gradient;
}

void Bucket::replace_gradient(std::int64_t entry, ConstBlock gradient) {
  slots_.at(static_cast<std::size_t>(entry)).gradient = gradient;
}

void Bucket::update(const Optimizer& optimizer, const UpdateContext& context) {
  const FlushDenormals flush;
  for (Slot& slot : slots_) {
    const std::int64_t numel = slot.parameter.numel;
    ParameterUpdate step{.parameter = slot.parameter,
                         .gradient = slot.gradient,
                         .mix = context.mix,
                         .step = slot.num_updates + 1,
                         .lr = context.lr,
                         .weight_decay = slot.weight_decay,
                         .gradient_scale = context.gradient_scale};
    if (context.inbox.data != nullptr) step.inbox = part_of(context.inbox, slot.offset, numel);
    for (std::size_t k = 0; k < states_.size(); ++k) {
      step.states[k] = part_of(states_[k].block(), slot.offset, numel).data;
    }
    optimizer.update(step);
    if (slot.gradient.data != nullptr) ++slot.num_updates;
    slot.gradient = {};
  }
  updated_ = true;
}

void Bucket::begin_step() {
  num_arrived_ = 0;
  updated_ = false;
}

}  // namespace gossamer
