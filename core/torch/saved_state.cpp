#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "core/torch/data_parallel_core.hpp"

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

/// The layouts of the parameters, by name.
std::map<std::string, MemoryLayout> layouts_of(const std::vector<NamedTensor>& parameters) {
  std::map<std::string, MemoryLayout> layouts;
  for (const NamedTensor& entry : parameters) {
    layouts[entry.name] = {entry.tensor.sizes().vec(), entry.tensor.strides().vec()};
  }
  return layouts;
}

}  // namespace

void DataParallelCore::visit(StateVisitor& visitor) {
  check_no_scope("visit()");
  check_whole();
  static_cast<void>(stream());
  if (!visitor.loads() && pipeline_->has_started()) adopt();
  pipeline_->visit_row_major(visitor, layouts_of(tensors_.trainable));
  visitor.number("run/buffer_steps", num_steps_);
  for (const NamedTensor& entry : tensors_.frozen) visit_tensor(visitor, entry);
  for (const NamedTensor& entry : tensors_.buffers) visit_tensor(visitor, entry);
  quiet_ = !visitor.loads();
  if (visitor.loads()) bump_versions();
}

}  // namespace gossamer
