#include "core/bucket.hpp"

#include <stdexcept>
#include <utility>

#include "base/text.hpp"

namespace gossamer {

Bucket::Bucket(std::int64_t index, BucketSpec spec, std::span<const ParameterInfo> parameters,
               Memory memory, int num_states, Stream& stream)
    : index_(index), spec_(std::move(spec)), memory_(std::move(memory)), stream_(stream) {
  const auto fits = [&stream](const Block& found, DType dtype, std::int64_t numel) {
    return found.numel == numel && found.dtype == dtype && found.device == stream.device();
  };
  const Block block = memory_.model.parameters.block();
  const Block rounded = memory_.model.rounded.block();
  if (!fits(block, spec_.dtype, spec_.numel) ||
      (spec_.has_master() && !fits(rounded, spec_.model_dtype, spec_.numel)) ||
      (!spec_.has_master() && rounded.data != nullptr)) {
    throw std::logic_error("Bucket: the memory does not fit the plan");
  }
  for (int k = 0; k < num_states; ++k) {
    states_.push_back(stream.allocate(spec_.numel, spec_.dtype));
  }
  std::vector<std::int64_t> numels;
  for (const BucketEntry& entry : spec_.entries) {
    const ParameterInfo& info = parameters[static_cast<std::size_t>(entry.parameter)];
    slots_.push_back({.name = info.name,
                      .parameter = part_of(block, entry.offset, info.numel()),
                      .offset = entry.offset,
                      .weight_decay = info.weight_decay});
    numels.push_back(info.numel());
  }
  if (!stream.on_host()) {
    scratch_ = stream.allocate(squares_scratch_numel(numels), DType::kFloat64);
  }
}

void Bucket::offer(std::int64_t entry, ConstBlock gradient) {
  Slot& slot = slots_.at(static_cast<std::size_t>(entry));
  if (gradient.numel != slot.parameter.numel || gradient.dtype != spec_.model_dtype) {
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

void Bucket::take_squares(SimdPath simd, WorkerPool* pool) {
  SquaresInput input{.squares = squares(), .scratch = scratch_.block(), .simd = simd, .pool = pool};
  for (const Slot& slot : slots_) input.gradients.push_back(slot.gradient);
  enqueue_squares(stream_, std::move(input));
}

void Bucket::update(const Optimizer& optimizer, const UpdateContext& context) {
  BlockUpdate update{.parameters = parameters(),
                     .rounded = memory_.model.rounded.block(),
                     .keep = context.keep,
                     .inboxes = {context.inboxes.begin(), context.inboxes.end()},
                     .lr = context.lr,
                     .decision = context.decision,
                     .simd = context.simd,
                     .pool = context.pool};
  for (std::size_t k = 0; k < states_.size(); ++k) update.states[k] = states_[k].block().data;
  for (Slot& slot : slots_) {
    update.segments.push_back({.offset = slot.offset,
                               .numel = slot.parameter.numel,
                               .gradient = slot.gradient,
                               .step = slot.num_updates + 1,
                               .weight_decay = slot.weight_decay});
    slot.counted = slot.gradient.data != nullptr;
    if (slot.counted) ++slot.num_updates;
    slot.gradient = {};
  }
  enqueue_update(stream_, optimizer, std::move(update));
  updated_ = true;
}

void Bucket::begin_step() {
  num_arrived_ = 0;
  updated_ = false;
}

void Bucket::take_back_update() {
  for (Slot& slot : slots_) {
    if (std::exchange(slot.counted, false)) --slot.num_updates;
  }
}

}  // namespace gossamer
