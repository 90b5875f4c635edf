#pragma once
// The way from a module's tensors to blocks: lists the tensors, describes the parameters, and moves
// them into flat memory. The functions keep no state; a module belongs to one thread.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "comm/communicator.hpp"
#include "core/bucket/bucket_plan.hpp"
#include "core/bucket/parameter_group.hpp"
#include "core/bucket/parameter_memory.hpp"

namespace gossamer {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

/// The tensors of a module. Each tensor stands here once, even if it is registered under several
/// names (tied weights).
struct ModuleTensors {
  /// All tensors that require a gradient, in declared order.
  std::vector<NamedTensor> trainable;
  /// Parameters that require no gradient. They are equal on all ranks after the broadcast.
  std::vector<NamedTensor> frozen;
  std::vector<NamedTensor> buffers;
};

ModuleTensors collect_tensors(const torch::nn::Module& module);

/// The optimizer and the numbers with which parameters are updated.
struct UpdateRule {
  /// The optimizer; null only for parameters that are never updated.
  std::shared_ptr<const Optimizer> optimizer = {};
  double weight_decay = 0.0;
  /// True: biases and the parameters of normalisation layers are decayed as well.
  bool decay_bias_and_norm = false;
  std::span<const ParameterGroup> groups = {};
};

/// Describes the trainable parameters, in their order. Biases and parameters of at most one
/// dimension (torch's normalisation layers have no others) get no weight decay, unless the rule or
/// a group asks for it. Throws ConfigError in these cases:
///
/// - A parameter is not float32, float64 or bfloat16.
/// - A parameter is not on `device`.
/// - A parameter is not strided, or its memory has gaps or overlaps.
/// - An optimizer of matrices updates a parameter whose first dimension is not the outermost in
///   memory.
/// - A group has no parameters.
std::vector<ParameterInfo> describe_parameters(std::span<const NamedTensor> trainable,
                                               const UpdateRule& rule, Device device = {});

/// A warning if an optimizer of matrices (`muon`) updates the embeddings (torch::nn::Embedding) of
/// a module, else empty. `infos` describes its trainable parameters, and `optimizer` updates the
/// parameters that name no optimizer.
std::string embedding_warning(const torch::nn::Module& module,
                              std::span<const NamedTensor> trainable,
                              std::span<const ParameterInfo> infos, const Optimizer& optimizer);

/// One line per tensor: whether it is trained, name, shape, strides, type.
std::string describe(const ModuleTensors& tensors);

/// Collective: copies rank 0's values to all ranks, and waits for the copies. Work on `stream` may
/// use the tensors afterwards. Throws CommError.
void broadcast_tensors(Communicator& communicator, Stream& stream, const ModuleTensors& tensors);

/// The type of a block with values of a type of LibTorch; empty if blocks do not have it.
std::optional<DType> dtype_of(torch::ScalarType type);

/// True for the types that parameters may have: float32, float64, bfloat16.
bool is_trained_type(const torch::Tensor& tensor);
/// True for the buffers whose means over ranks are their values in the mean model.
bool is_averaged(const NamedTensor& buffer);

/// The memory of the tensors, for a ModelAverage; it keeps the tensors alive. All tensors must be
/// dense and of a type that parameters may have. A tensor in bfloat16 gets a float32 copy, and the
/// ModelAverage averages this copy.
std::vector<ParameterMemory> averaged_memory(std::span<const NamedTensor> tensors, Stream& stream);

/// Replaces a gradient in another layout than the parameter's by a copy in the parameter's layout.
/// Throws ConfigError for a gradient that is sparse or has another type than the parameter.
void adopt_layout(const NamedTensor& parameter, torch::Tensor& grad);

/// The memory of a dense tensor, in the order of the memory. The tensor must outlive the block.
/// Throws std::logic_error for types other than float32, float64 and bfloat16.
Block block_of_tensor(const torch::Tensor& tensor);

/// Moves the parameters of a bucket into new memory on the stream's device, which is also theirs.
/// Values, strides and hooks stay. In a bucket with master copies, the parameters lie in the
/// rounded block. The parameters share the memory's ownership.
ParameterMemory move_into_block(const BucketSpec& spec, std::span<const NamedTensor> trainable,
                                Stream& stream);

}  // namespace gossamer
