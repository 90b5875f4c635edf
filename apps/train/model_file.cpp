#include "apps/train/model_file.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <utility>

#include <torch/types.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer::apps {
namespace {

struct TypeName {
  torch::ScalarType type;
  std::string_view name;
};
constexpr std::array kTypes = {
    TypeName{torch::kFloat32, "F32"},   TypeName{torch::kFloat64, "F64"},
    TypeName{torch::kBFloat16, "BF16"}, TypeName{torch::kFloat16, "F16"},
    TypeName{torch::kInt64, "I64"},     TypeName{torch::kInt32, "I32"},
    TypeName{torch::kUInt8, "U8"},      TypeName{torch::kBool, "BOOL"},
};
constexpr std::string_view kAllowed =
    "allowed: float32, float64, bfloat16, float16, int64, int32, uint8, bool";

std::string type_name(torch::ScalarType type) {
  for (const TypeName& row : kTypes) {
    if (row.type == type) return std::string(row.name);
  }
  throw CheckpointError(
      concat("a model with ", torch::toString(type), " values cannot be saved, ", kAllowed));
}

torch::Tensor read_tensor(const SafetensorsFile& file, const TensorEntry& entry) {
  const auto row = std::ranges::find(kTypes, entry.dtype, &TypeName::name);
  if (row == kTypes.end()) {
    throw CheckpointError(concat(file.path(), ": ", entry.name, " has the type ", entry.dtype,
                                 ", which cannot be loaded, ", kAllowed));
  }
  torch::Tensor values = torch::empty(entry.shape, row->type);
  file.read(entry, values.data_ptr());
  return values;
}

/// Parameters and buffers, without copies.
std::vector<NamedTensor> tensors_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  for (const auto& entry : module.named_parameters()) {
    tensors.push_back({entry.key(), entry.value().detach()});
  }
  for (const auto& entry : module.named_buffers()) {
    tensors.push_back({entry.key(), entry.value()});
  }
  return tensors;
}

/// A clause with the first of the names; empty if there are none.
std::string clause(std::string_view beginning, const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 8;
  if (names.empty()) return "";
  const bool all = names.size() <= kMostNames;
  const std::span<const std::string> first(names.data(), all ? names.size() : kMostNames);
  return concat("; ", beginning, " ", join(first, ", "),
                all ? "" : concat(" and ", names.size() - kMostNames, " more"));
}

}  // namespace

std::vector<NamedTensor> copy_to_host(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors = tensors_of(module);
  for (NamedTensor& entry : tensors) {
    entry.tensor = entry.tensor.to(torch::kCPU, /*non_blocking=*/false, /*copy=*/true);
  }
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

void check_savable(const torch::nn::Module& module) {
  for (const NamedTensor& entry : tensors_of(module)) {
    static_cast<void>(type_name(entry.tensor.scalar_type()));
  }
}

std::string load_model_file(const std::string& path, torch::nn::Module& module, bool partial,
                            std::string_view advice) {
  const SafetensorsFile file(path, SymbolicLink::kFollowed);
  std::vector<std::pair<NamedTensor, const TensorEntry*>> fitting;
  std::vector<std::string> missing;
  std::vector<std::string> other_shapes;
  std::vector<std::string> unused;
  std::set<std::string> names;
  for (const NamedTensor& own : tensors_of(module)) {
    names.insert(own.name);
    const TensorEntry* entry = file.find(own.name);
    if (entry == nullptr) {
      missing.push_back(own.name);
    } else if (own.tensor.sizes() != c10::IntArrayRef(entry->shape)) {
      other_shapes.push_back(concat(own.name, " ([", join(entry->shape, ", "), "], not [",
                                    join(own.tensor.sizes(), ", "), "])"));
    } else {
      fitting.emplace_back(own, entry);
    }
  }
  for (const TensorEntry& entry : file.tensors()) {
    if (!names.contains(entry.name)) unused.push_back(entry.name);
  }
  const std::string difference =
      concat(clause("the file lacks", missing), clause("other shapes have", other_shapes),
             clause("the model has no", unused));
  if (!difference.empty() && !partial) {
    throw CheckpointError(concat(path, " does not fit the model", difference, ". ", advice));
  }
  if (fitting.empty()) throw CheckpointError(concat(path, " has no value that fits the model"));
  const torch::NoGradGuard no_grad;
  for (auto& [own, entry] : fitting) own.tensor.copy_(read_tensor(file, *entry));
  if (difference.empty()) return "";
  return concat(path, " fits only a part of the model", difference);
}

}  // namespace gossamer::apps
