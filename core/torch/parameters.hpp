#pragma once
// Between tensors and blocks: which parameters a module has, and moving them into flat memory.

#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "comm/communicator.hpp"
#include "core/bucket_plan.hpp"
#include "core/parameter_memory.hpp"

namespace gossamer {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

/// What a module holds, each tensor once even if it is registered under several names (tied
/// weights).
struct ModuleTensors {
  std::vector<NamedTensor> trainable;
  /// Parameters that require no gradient: equal on all ranks once they are broadcast.
  std::vector<NamedTensor> frozen;
  std::vector<NamedTensor> buffers;
};

ModuleTensors collect_tensors(const torch::nn::Module& module);

struct DecayRule {
  double weight_decay = 0.0;
  bool decay_bias_and_norm = false;
};

/// Descriptions of the trainable parameters. Biases and parameters of at most one dimension (all of
/// torch's normalisation layers have such) get no weight decay unless the rule says so. Throws
/// ConfigError for a parameter that is not float32, float64 or bfloat16, not on `device`, not
/// strided, or whose memory has gaps.
std::vector<ParameterInfo> describe_parameters(std::span<const NamedTensor> trainable,
                                               const DecayRule& rule, Device device = {});

/// One line per tensor: name, shape, strides, dtype, whether it is trained.
std::string describe(const ModuleTensors& tensors);

/// Collective: copies rank 0's values to all ranks. The tensors may be used on `stream` afterwards.
void broadcast_tensors(Communicator& communicator, Stream& stream, const ModuleTensors& tensors);

/// Whether parameters may have the tensor's type: float32, float64 or bfloat16.
bool is_trained_type(const torch::Tensor& tensor);

/// The memory of tensors that are dense and have a type that is trained, for a ModelAverage. Those
/// in bfloat16 get a float32 copy, which is what is averaged.
std::vector<ParameterMemory> averaged_memory(std::span<const NamedTensor> tensors, Stream& stream);

/// Replaces a parameter's gradient by one in the parameter's layout, if it has another. Throws
/// ConfigError for one that is sparse or has another type.
void adopt_layout(const NamedTensor& parameter, torch::Tensor& grad);

/// The memory of a dense tensor, in the order in which it lies there. Throws std::logic_error for
/// another dtype than float32, float64 and bfloat16.
Block block_of_tensor(const torch::Tensor& tensor);

/// Moves the parameters of a bucket into new memory of the stream's device, where they are; values,
/// strides and hooks stay. Where there is a master copy, the parameters lie in the rounded one.
ParameterMemory move_into_block(const BucketSpec& spec, std::span<const NamedTensor> trainable,
                                Stream& stream);

}  // namespace gossamer
