#include "core/torch/parameters.hpp"

#include <algorithm>
#include <cstring>
#include <regex>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/state/broadcast_blocks.hpp"
#include "core/torch/torch_stream.hpp"
#include "optim/convert.hpp"

namespace gossamer {
namespace {

bool is_bias_or_norm(const NamedTensor& parameter) {
  return parameter.tensor.dim() <= 1 || parameter.name == "bias" ||
         parameter.name.ends_with(".bias");
}

DType trained_dtype(const torch::Tensor& tensor) {
  if (is_trained_type(tensor)) return dtype_of(tensor.scalar_type()).value();
  throw std::logic_error(concat("no block of ", torch::toString(tensor.scalar_type())));
}

void check_trainable(const NamedTensor& parameter, Device device) {
  const torch::Tensor& tensor = parameter.tensor;
  const auto refuse = [&parameter](std::string_view what, std::string_view allowed) {
    throw ConfigError(concat("parameter ", parameter.name, " ", what, ", allowed: ", allowed));
  };
  if (tensor.device() != torch_device(device)) {
    refuse(concat("is on ", tensor.device().str()),
           concat(to_string(device), ", where DataParallelOptions::stream has it"));
  }
  if (tensor.layout() != torch::kStrided) refuse("is sparse", "dense parameters");
  if (!is_trained_type(tensor)) {
    refuse(concat("is ", torch::toString(tensor.scalar_type())), "float32, float64, bfloat16");
  }
  if (!tensor.is_non_overlapping_and_dense()) {
    refuse("has gaps or overlaps in its memory", "a dense tensor (contiguous or channels_last)");
  }
}

/// The same memory without the dimensions along which an expanded tensor repeats it, which torch
/// refuses to write.
torch::Tensor unexpanded(torch::Tensor tensor) {
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  }
  return tensor;
}

}  // namespace

std::optional<DType> dtype_of(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
      return DType::kFloat32;
    case torch::kFloat64:
      return DType::kFloat64;
    case torch::kBFloat16:
      return DType::kBFloat16;
    case torch::kInt64:
      return DType::kInt64;
    case torch::kUInt8:
      return DType::kUInt8;
    default:
      return std::nullopt;
  }
}

ModuleTensors collect_tensors(const torch::nn::Module& module) {
  ModuleTensors tensors;
  std::unordered_set<const void*> seen;
  const auto add = [&](const auto& entry, std::vector<NamedTensor>& untrained) {
    const torch::Tensor& tensor = entry.value();
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) return;
    (tensor.requires_grad() ? tensors.trainable : untrained).push_back({entry.key(), tensor});
  };
  for (const auto& entry : module.named_parameters()) add(entry, tensors.frozen);
  for (const auto& entry : module.named_buffers()) add(entry, tensors.buffers);
  return tensors;
}

namespace {

/// Gives the parameters of every group their numbers.
void apply_groups(std::span<const ParameterGroup> groups, std::vector<ParameterInfo>& infos) {
  std::vector<bool> is_taken(infos.size());
  for (const ParameterGroup& group : groups) {
    const std::regex pattern(group.match.value_or(""));
    const auto fits = [&](const ParameterInfo& info) {
      if (group.vectors && info.shape.size() < 2) return true;
      return group.match && std::regex_search(info.name, pattern);
    };
    bool has_parameters = false;
    for (std::size_t i = 0; i < infos.size(); ++i) {
      if (is_taken[i] || !fits(infos[i])) continue;
      is_taken[i] = true;
      has_parameters = true;
      infos[i].lr_factor = group.lr_factor;
      infos[i].optimizer = group.optimizer;
      if (group.weight_decay) infos[i].weight_decay = *group.weight_decay;
    }
    if (has_parameters) continue;
    std::vector<std::string> names;
    for (const ParameterInfo& info : infos) names.push_back(info.name);
    throw ConfigError(concat("no parameter is left for the group of parameters '",
                             group.match.value_or("vectors"),
                             "' (optimizer.groups); the model has ", join(names, ", ")));
  }
}

/// Where one parameter names an optimizer, all name theirs.
void name_optimizers(const std::shared_ptr<const Optimizer>& base,
                     std::vector<ParameterInfo>& infos) {
  const auto names_one = [](const ParameterInfo& info) { return info.optimizer != nullptr; };
  if (std::ranges::none_of(infos, names_one)) return;
  for (ParameterInfo& info : infos) {
    if (!info.optimizer) info.optimizer = base;
  }
}

/// `base` updates the parameters that name no optimizer; null: these are not updated.
bool is_updated_as_matrix(const ParameterInfo& info, const Optimizer* base) {
  const Optimizer* const own = info.optimizer ? info.optimizer.get() : base;
  return own != nullptr && own->needs_matrices();
}

/// A matrix is row-major in memory, however the dimensions after the first one lie.
void check_rows(const NamedTensor& parameter, const ParameterInfo& info, const Optimizer* base) {
  if (!is_updated_as_matrix(info, base)) return;
  const torch::Tensor& tensor = parameter.tensor;
  for (std::int64_t d = 1; d < tensor.dim(); ++d) {
    if (tensor.size(0) == 1 || tensor.size(d) == 1 || tensor.stride(d) < tensor.stride(0)) continue;
    throw ConfigError(concat("parameter ", parameter.name, " has its rows inside in memory ",
                             "(transposed), and its optimizer updates matrices, allowed: ",
                             "contiguous or channels_last"));
  }
}

}  // namespace

std::vector<ParameterInfo> describe_parameters(std::span<const NamedTensor> trainable,
                                               const UpdateRule& rule, Device device) {
  std::vector<ParameterInfo> infos;
  for (const NamedTensor& parameter : trainable) {
    check_trainable(parameter, device);
    const bool decays = rule.decay_bias_and_norm || !is_bias_or_norm(parameter);
    infos.push_back({.name = parameter.name,
                     .shape = parameter.tensor.sizes().vec(),
                     .dtype = trained_dtype(parameter.tensor),
                     .weight_decay = decays ? rule.weight_decay : 0.0});
  }
  apply_groups(rule.groups, infos);
  name_optimizers(rule.optimizer, infos);
  for (std::size_t i = 0; i < infos.size(); ++i) {
    check_rows(trainable[i], infos[i], rule.optimizer.get());
  }
  return infos;
}

std::string embedding_warning(const torch::nn::Module& module,
                              std::span<const NamedTensor> trainable,
                              std::span<const ParameterInfo> infos, const Optimizer& optimizer) {
  std::unordered_set<const void*> embeddings;
  for (const auto& part : module.modules()) {
    const auto* const embedding = part->as<torch::nn::Embedding>();
    if (embedding != nullptr) embeddings.insert(embedding->weight.unsafeGetTensorImpl());
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const bool is_embedding = embeddings.contains(trainable[i].tensor.unsafeGetTensorImpl());
    if (is_embedding && is_updated_as_matrix(infos[i], &optimizer)) names.push_back(infos[i].name);
  }
  if (names.empty()) return "";
  return concat("an optimizer of matrices (muon) updates the embeddings ", join(names, ", "),
                "; embeddings and the last layer train better with another one, which a group ",
                "names: {match: \"", join(names, "|"),
                "|head\", vectors: true, optimizer: adamw}, if the last layer is called head");
}

std::string describe(const ModuleTensors& tensors) {
  std::ostringstream out;
  const auto write = [&out](const std::vector<NamedTensor>& list, std::string_view kind) {
    for (const NamedTensor& entry : list) {
      out << kind << " " << entry.name << " [" << join(entry.tensor.sizes(), ", ")
          << "] with strides [" << join(entry.tensor.strides(), ", ") << "] of "
          << torch::toString(entry.tensor.scalar_type()) << "\n";
    }
  };
  write(tensors.trainable, "trained");
  write(tensors.frozen, "not trained");
  write(tensors.buffers, "buffer");
  return out.str();
}

void broadcast_tensors(Communicator& communicator, Stream& stream, const ModuleTensors& tensors) {
  const torch::NoGradGuard no_grad;
  // With the dense copies of tensors that have gaps.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> shared;
  std::vector<Block> blocks;
  for (const auto* list : {&tensors.trainable, &tensors.frozen, &tensors.buffers}) {
    for (const NamedTensor& entry : *list) {
      const torch::Tensor own = unexpanded(entry.tensor.detach());
      const torch::Tensor dense = own.is_non_overlapping_and_dense() ? own : own.contiguous();
      // As bytes: integer, bool and half buffers travel the same way.
      blocks.push_back({dense.data_ptr(), static_cast<std::int64_t>(dense.nbytes()), DType::kUInt8,
                        device_of(dense.device())});
      shared.emplace_back(own, dense);
    }
  }
  broadcast_blocks(communicator, stream, blocks);
  for (auto& [own, dense] : shared) {
    if (!dense.is_same(own)) own.copy_(dense);
  }
}

bool is_trained_type(const torch::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == torch::kFloat32 || type == torch::kFloat64 || type == torch::kBFloat16;
}

bool is_averaged(const NamedTensor& buffer) {
  return is_trained_type(buffer.tensor) && buffer.tensor.is_non_overlapping_and_dense();
}

std::vector<ParameterMemory> averaged_memory(std::span<const NamedTensor> tensors, Stream& stream) {
  std::vector<ParameterMemory> memory;
  for (const NamedTensor& entry : tensors) {
    memory.push_back(memory_of_tensor(
        Buffer(std::make_shared<torch::Tensor>(entry.tensor), block_of_tensor(entry.tensor)),
        stream));
  }
  return memory;
}

void adopt_layout(const NamedTensor& parameter, torch::Tensor& grad) {
  const torch::NoGradGuard no_grad;
  if (grad.layout() != torch::kStrided) {
    throw ConfigError(concat("parameter ", parameter.name,
                             " has a sparse gradient, allowed: dense gradients (build the ",
                             "embedding without sparse = true)"));
  }
  if (grad.scalar_type() != parameter.tensor.scalar_type()) {
    throw ConfigError(concat("the gradient of ", parameter.name, " is ",
                             torch::toString(grad.scalar_type()), ", allowed: the parameter's ",
                             torch::toString(parameter.tensor.scalar_type())));
  }
  if (grad.strides() == parameter.tensor.strides() && grad.is_non_overlapping_and_dense()) return;
  // Autograd keeps the gradient's own layout when it takes it over instead of copying it.
  torch::Tensor same_layout = torch::empty_like(parameter.tensor);
  same_layout.copy_(grad);
  grad = same_layout;
}

Block block_of_tensor(const torch::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.numel(), trained_dtype(tensor), device_of(tensor.device())};
}

ParameterMemory move_into_block(const BucketSpec& spec, std::span<const NamedTensor> trainable,
                                Stream& stream) {
  const torch::NoGradGuard no_grad;
  ParameterMemory memory = allocate_parameters(spec, stream);
  const Buffer& models = spec.has_master() ? memory.rounded : memory.parameters;
  for (const BucketEntry& entry : spec.entries) {
    torch::Tensor parameter = trainable[static_cast<std::size_t>(entry.parameter)].tensor;
    const Block place = part_of(models.block(), entry.offset, parameter.numel());
    // The view owns a share of the buffer, so a parameter may outlive everything else.
    torch::Tensor view = torch::from_blob(
        place.data, parameter.sizes(), parameter.strides(), [owner = models.owner()](void*) {},
        parameter.options().requires_grad(false));
    view.copy_(parameter.detach());
    parameter.set_data(view);
  }
  if (spec.has_master()) {
    enqueue_convert(stream, memory.parameters.block(), memory.rounded.block());
  }
  return memory;
}

}  // namespace gossamer
