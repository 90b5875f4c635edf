#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include <torch/types.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/torch/backward_end.hpp"
#include "core/torch/data_parallel_core.hpp"
#include "core/torch/orthogonalize.hpp"
#include "core/torch/torch_stream.hpp"

namespace gossamer {
namespace {

void bump_version(const torch::Tensor& tensor) { tensor.unsafeGetTensorImpl()->bump_version(); }

}  // namespace

Pipeline::Config DataParallelOptions::pipeline() const {
  return {.exchange = exchange,
          .optimizer = optimizer,
          .group_optimizers = optimizers_of(parameter_groups),
          .schedule = schedule,
          .gradients = gradients,
          .stream = stream,
          .num_threads = num_threads,
          .orthogonalize = torch_orthogonalize,
          .timeline = timeline,
          .begins_detached = joins,
          .bucket_bytes = bucket_bytes,
          .average_buffers_every = average_buffers_every,
          .logger = logger};
}

Stream& DataParallelCore::stream() {
  if (options_.stream == nullptr) return inline_stream_;
  options_.stream->update_current();
  return *options_.stream;
}

/// Autograd drops its callbacks when a backward pass throws: that step can never be completed.
void DataParallelCore::check_whole() const {
  if (in_backward_ && callback_.expired()) {
    throw std::logic_error(
        "an earlier backward() failed half way through its step; training cannot go on after it");
  }
}

void DataParallelCore::begin_backward(const std::weak_ptr<DataParallelCore>& core) {
  // Before a gradient is added to anything.
  if (pipeline_->has_started()) pipeline_->check_committed();
  in_backward_ = true;
  ++num_passes_;
  if (!accumulating_) begin_step();
  const auto end = std::make_shared<std::function<void()>>([core] {
    // After an error autograd may drop the callback when the core's stream has gone.
    if (const auto self = core.lock()) self->end_backward();
  });
  callback_ = end;
  at_end_of_backward(end);
}

void DataParallelCore::end_backward() {
  in_backward_ = false;
  if (!accumulating_) end_step();
}

void DataParallelCore::begin_step() {
  static_cast<void>(stream());
  adopt();
  quiet_ = false;
}

void DataParallelCore::offer_accumulated(std::int64_t parameter,
                                         std::optional<const void*> stream) {
  const NamedTensor& entry = tensors_.trainable[static_cast<std::size_t>(parameter)];
  torch::Tensor& grad = entry.tensor.mutable_grad();
  adopt_layout(entry, grad);
  if (options_.mean_over_micro_batches && num_passes_ > 1) {
    const torch::NoGradGuard no_grad;
    grad.div_(num_passes_);
  }
  places_[static_cast<std::size_t>(parameter)].made_on = stream;
  pipeline_->gradient_ready(parameter, block_of_tensor(grad));
}

/// Parameters whose gradient came in an earlier micro-batch only fire no hook in the last one.
void DataParallelCore::offer_rest() {
  for (std::int64_t i = 0; i < std::ssize(tensors_.trainable); ++i) {
    const torch::Tensor& parameter = tensors_.trainable[static_cast<std::size_t>(i)].tensor;
    if (!pipeline_->is_offered(i) && parameter.grad().defined()) {
      offer_accumulated(i, std::nullopt);
    }
  }
}

void DataParallelCore::take_declared_order() {
  for (std::int64_t i = std::ssize(tensors_.trainable) - 1; i >= 0; --i) {
    const torch::Tensor& parameter = tensors_.trainable[static_cast<std::size_t>(i)].tensor;
    if (parameter.grad().defined()) pipeline_->arrived(i);
  }
}

std::vector<ParameterMemory> DataParallelCore::move_parameters(const BucketPlan& plan) {
  std::vector<ParameterMemory> memory;
  for (const BucketSpec& spec : plan.buckets) {
    memory.push_back(move_into_block(spec, tensors_.trainable, stream()));
  }
  return memory;
}

void DataParallelCore::parameters_have_moved() {
  note_homes();
  for (std::size_t i = 0; i < places_.size(); ++i) note_version(i);
  // After a change of buckets the exchanges of the last step are repeated.
  quiet_ = false;
}

void DataParallelCore::drain_parameters() {
  adopt();
  drain();
}

void DataParallelCore::average_parameters(double weight) {
  ModelAverage(communicator_, stream(), parameter_memory(), weight);
}

void DataParallelCore::check_between_steps(std::string_view call) const {
  check_no_scope(call);
  check_whole();
  if (!in_backward_ && num_passes_ == 0) return;
  throw std::logic_error(concat(call, " inside a step, which ends with its last backward()"));
}

void DataParallelCore::switch_to(const AlgorithmSwitch& to) {
  check_between_steps("switch_to()");
  pipeline_->switch_to(to);
  if (!to.averages()) return;
  average_buffers();
  bump_versions();
}

void DataParallelCore::after_update(const BucketSpec& spec) {
  for (const BucketEntry& entry : spec.entries) {
    const auto place = static_cast<std::size_t>(entry.parameter);
    const torch::Tensor& parameter = tensors_.trainable[place].tensor;
    if (options_.stream != nullptr && parameter.grad().defined() &&
        places_[place].made_on != options_.stream->native()) {
      // Its memory would be used again on the stream where it was made, which does not wait for the
      // sweep.
      options_.stream->keep_for_current(parameter.grad());
    }
    parameter.mutable_grad().reset();
    // The sweep wrote behind autograd's back: a graph that still needs the old values must notice.
    bump_version(parameter);
    note_version(place);
  }
}

void DataParallelCore::end_step() {
  if (!pipeline_->has_plan()) {
    pipeline_->make_plan();
    if (!options_.dry_run) pipeline_->start();
  }
  if (options_.dry_run) {
    num_passes_ = 0;
    pipeline_->forget_offered();
    for (const NamedTensor& entry : tensors_.trainable) entry.tensor.mutable_grad().reset();
    return;
  }
  // What the caller does next comes behind this step.
  static_cast<void>(stream());
  offer_rest();
  warn_of_untrained();
  pipeline_->finish_step();
  num_passes_ = 0;
  // No later pass shall add to them.
  if (pipeline_->has_uncommitted_step()) uncommitted_gradients_ = take_gradients();
  const std::int64_t every = options_.average_buffers_every;
  // The others are elsewhere while this rank makes steps alone.
  if (every == 0 || ++num_steps_ % every != 0 || pipeline_->is_detached()) return;
  try {
    average_buffers();
  } catch (const PeerLost&) {
    // The step is made. The next call that needs the others throws.
    if (!communicator_.is_elastic()) throw;
  }
}

void DataParallelCore::average_buffers(double weight) {
  std::vector<ParameterMemory> memory = buffer_memory();
  if (!memory.empty()) ModelAverage(communicator_, stream(), std::move(memory), weight);
}

std::vector<ParameterMemory> DataParallelCore::parameter_memory() {
  if (pipeline_->has_started()) return pipeline_->memory();
  return averaged_memory(tensors_.trainable, stream());
}

std::vector<ParameterMemory> DataParallelCore::buffer_memory() {
  std::vector<NamedTensor> averaged;
  std::ranges::copy_if(tensors_.buffers, std::back_inserter(averaged), is_averaged);
  return averaged_memory(averaged, stream());
}

void DataParallelCore::bump_versions() {
  for (std::size_t i = 0; i < tensors_.trainable.size(); ++i) {
    bump_version(tensors_.trainable[i].tensor);
    note_version(i);
  }
}

void DataParallelCore::note_version(std::size_t parameter) {
  places_[parameter].version = tensors_.trainable[parameter].tensor._version();
}

}  // namespace gossamer
