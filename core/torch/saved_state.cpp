#include <optional>

#include <torch/types.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/torch/data_parallel_state.hpp"
#include "core/torch/torch_stream.hpp"

namespace gossamer {
namespace {

/// Shows the visitor a tensor that belongs to no bucket. The values are saved in row-major order;
/// as bytes, if blocks do not have the tensor's type.
void visit_tensor(StateVisitor& visitor, const NamedTensor& entry) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor values = entry.tensor.detach().to(torch::kCPU).contiguous();
  const std::optional<DType> type = dtype_of(values.scalar_type());
  visitor.block(entry.name,
                {.data = values.data_ptr(),
                 .numel = type ? values.numel() : static_cast<std::int64_t>(values.nbytes()),
                 .dtype = type.value_or(DType::kUInt8)});
  if (visitor.loads()) entry.tensor.detach().copy_(values);
}

}  // namespace

void DataParallelCore::State::visit_arrival_order(StateVisitor& visitor) {
  std::int64_t count = std::ssize(arrival_order);
  visitor.number("run/num_arrived", count);
  std::vector<std::int64_t> order = arrival_order;
  if (visitor.loads()) {
    if (count < 0 || count > std::ssize(infos)) {
      throw CheckpointError("the saved order of gradients does not fit the model");
    }
    order.assign(static_cast<std::size_t>(count), 0);
  }
  visitor.block("run/arrival_order",
                {.data = order.data(), .numel = count, .dtype = DType::kInt64});
  // A wrapper that has buckets keeps them: the state is saved by parameter.
  if (!visitor.loads() || pipeline) return;
  std::vector<bool> seen(infos.size());
  for (const std::int64_t index : order) {
    const auto place = static_cast<std::size_t>(index);
    if (index < 0 || place >= seen.size() || seen[place]) {
      throw CheckpointError("the saved order of gradients does not fit the model");
    }
    seen[place] = true;
  }
  arrival_order = std::move(order);
  make_plan();
  start_pipeline();
}

void DataParallelCore::visit(StateVisitor& visitor) {
  State& state = *state_;
  state.check_no_scope("visit()");
  state.check_whole();
  if (!visitor.loads() && !state.pipeline) {
    throw std::logic_error("visit() before the first step, when there is no state to save");
  }
  static_cast<void>(state.stream());
  if (state.tuner) state.tuner->skip_step();
  if (!visitor.loads()) state.adopt_written();
  state.visit_arrival_order(visitor);
  state.pipeline->visit(visitor);
  visitor.number("run/buffer_steps", state.num_steps);
  for (const NamedTensor& entry : state.tensors.frozen) visit_tensor(visitor, entry);
  for (const NamedTensor& entry : state.tensors.buffers) visit_tensor(visitor, entry);
  state.quiet = !visitor.loads();
  if (visitor.loads()) state.bump_versions();
}

}  // namespace gossamer
