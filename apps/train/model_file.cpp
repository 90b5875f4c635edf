#include "apps/train/model_file.hpp"

#include <filesystem>
#include <utility>

#include <torch/types.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer::apps {
namespace {

std::string type_name(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
      return "F32";
    case torch::kFloat64:
      return "F64";
    case torch::kBFloat16:
      return "BF16";
    case torch::kFloat16:
      return "F16";
    case torch::kInt64:
      return "I64";
    case torch::kInt32:
      return "I32";
    case torch::kUInt8:
      return "U8";
    case torch::kBool:
      return "BOOL";
    default:
      throw CheckpointError(concat("a model with ", torch::toString(type),
                                   " values cannot be saved, allowed: float32, float64, bfloat16, "
                                   "float16, int64, int32, uint8, bool"));
  }
}

}  // namespace

std::vector<NamedTensor> copy_to_host(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  const auto add = [&tensors](const auto& entry) {
    tensors.push_back({entry.key(), entry.value().detach().to(torch::kCPU, /*non_blocking=*/false,
                                                              /*copy=*/true)});
  };
  for (const auto& entry : module.named_parameters()) add(entry);
  for (const auto& entry : module.named_buffers()) add(entry);
  return tensors;
}

FileDigest write_model_file(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::vector<torch::Tensor> values;
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    values.push_back(tensor.detach().contiguous());
    views.push_back({.name = name,
                     .dtype = type_name(tensor.scalar_type()),
                     .shape = tensor.sizes().vec(),
                     .data = values.back().data_ptr(),
                     .num_bytes = static_cast<std::int64_t>(values.back().nbytes())});
  }
  return write_safetensors(path, std::move(views));
}

}  // namespace gossamer::apps
