#pragma once
// Between tensors and blocks: which parameters a module has, and moving them into flat memory.

#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "gossamer/comm/communicator.hpp"
#include "gossamer/core/base/buffer.hpp"
#include "gossamer/core/engine/bucket_plan.hpp"

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
/// ConfigError for a parameter that is not float32 or float64, not on `device`, not strided, or
/// whose memory has gaps.
std::vector<ParameterInfo> describe_parameters(std::span<const NamedTensor> trainable,
                                               const DecayRule& rule, Device device = {});

/// One line per tensor: name, shape, strides, dtype, whether it is trained.
std::string describe(const ModuleTensors& tensors);

/// Collective: copies rank 0's values to all ranks. The tensors may be used on `stream` afterwards.
void broadcast_tensors(Communicator& communicator, Stream& stream, const ModuleTensors& tensors);

/// The memory of a dense tensor, in the order in which it lies there. Throws std::logic_error for
/// another dtype than float32 and float64.
Block block_of_tensor(const torch::Tensor& tensor);

/// Moves the parameters of a bucket into one new buffer of the stream's device, where they are;
/// values, strides and hooks stay.
Buffer move_into_block(const BucketSpec& spec, std::span<const NamedTensor> trainable,
                       Stream& stream);

}  // namespace gossamer
