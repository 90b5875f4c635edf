// What DataParallelCore does when ranks are lost or join.

#include "base/error.hpp"
#include "core/torch/data_parallel_core.hpp"

namespace gossamer {

void DataParallelCore::detach() {
  check_between_steps("detach()");
  pipeline_->detach();
}

void DataParallelCore::catch_up(std::int64_t num_steps) {
  check_between_steps("catch_up()");
  pipeline_->catch_up(num_steps);
  if (!pipeline_->has_uncommitted_step()) uncommitted_gradients_.clear();
}

void DataParallelCore::resume(const Pipeline::Resume& wanted) {
  check_between_steps("resume()");
  agree(communicator_, "their models", describe(tensors_));
  const MeanWeight mean = mean_weight(communicator_, /*counts=*/!wanted.joins);
  const bool some_join = mean.num_counting < communicator_.size();
  pipeline_->resume(wanted);
  if (!pipeline_->has_uncommitted_step()) uncommitted_gradients_.clear();
  if (some_join) copy_unaveraged();
  if (some_join || wanted.to.averages()) average_buffers(mean.weight);
  quiet_ = true;
  bump_versions();
}

void DataParallelCore::copy_unaveraged() {
  ModuleTensors others{.trainable = {}, .frozen = tensors_.frozen, .buffers = {}};
  for (const NamedTensor& entry : tensors_.buffers) {
    if (!is_averaged(entry)) others.buffers.push_back(entry);
  }
  broadcast_tensors(communicator_, stream(), others);
}

}  // namespace gossamer
