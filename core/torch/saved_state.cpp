#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/torch/data_parallel_core.hpp"
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

/// An integer type whose numbers have as many bytes.
torch::ScalarType carrier_of(DType dtype) {
  switch (size_of(dtype)) {
    case 1:
      return torch::kUInt8;
    case 2:
      return torch::kInt16;
    case 4:
      return torch::kInt32;
    default:
      return torch::kInt64;
  }
}

/// Shows another visitor the values of parameters, and of their states, in row-major order. So a
/// saved state does not depend on strides.
class RowMajorVisitor : public StateVisitor {
 public:
  RowMajorVisitor(StateVisitor& inner, const std::vector<NamedTensor>& parameters) : inner_(inner) {
    for (const NamedTensor& entry : parameters) {
      if (!entry.tensor.is_contiguous()) layouts_.emplace(entry.name, entry.tensor);
    }
  }

  [[nodiscard]] bool loads() const override { return inner_.loads(); }
  [[nodiscard]] bool holds(const std::string& name) const override { return inner_.holds(name); }
  void number(const std::string& name, double& value) override { inner_.number(name, value); }
  void number(const std::string& name, std::int64_t& value) override { inner_.number(name, value); }

  void block(const std::string& name, const Block& block) override {
    const auto found = layouts_.find(name.substr(0, name.find('/')));
    if (found == layouts_.end() || block.numel != found->second.numel()) {
      return inner_.block(name, block);
    }
    const torch::NoGradGuard no_grad;
    torch::Tensor values = torch::from_blob(block.data, found->second.sizes(),
                                            found->second.strides(), carrier_of(block.dtype));
    const torch::Tensor rows = values.contiguous();
    inner_.block(name, {.data = rows.data_ptr(), .numel = block.numel, .dtype = block.dtype});
    if (loads()) values.copy_(rows);
  }

 private:
  StateVisitor& inner_;
  /// By name, the parameters whose memory has another order.
  std::map<std::string, torch::Tensor> layouts_;
};

}  // namespace

void DataParallelCore::visit(StateVisitor& visitor) {
  check_no_scope("visit()");
  check_whole();
  if (!visitor.loads() && model_->pipeline() == nullptr) {
    throw std::logic_error("visit() before the first step, when there is no state to save");
  }
  static_cast<void>(stream());
  model_->skip_trial();
  if (!visitor.loads()) adopt();
  model_->visit_arrival_order(visitor);
  // Older versions saved parameters in the order of their memory.
  std::int64_t is_row_major = visitor.loads() && !visitor.holds(kRowMajorName) ? 0 : 1;
  if (is_row_major != 0) visitor.number(kRowMajorName, is_row_major);
  RowMajorVisitor rows(visitor, tensors_.trainable);
  model_->pipeline()->visit(is_row_major != 0 ? rows : visitor);
  visitor.number("run/buffer_steps", num_steps_);
  for (const NamedTensor& entry : tensors_.frozen) visit_tensor(visitor, entry);
  for (const NamedTensor& entry : tensors_.buffers) visit_tensor(visitor, entry);
  quiet_ = !visitor.loads();
  if (visitor.loads()) bump_versions();
}

}  // namespace gossamer
