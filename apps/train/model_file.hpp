#pragma once
// Models as safetensors files. Python reads them with safetensors.torch.load_file().

#include <string>
#include <vector>

#include "core/checkpoint/sha256.hpp"
#include "core/torch/parameters.hpp"

namespace gossamer::apps {

/// Copies of a module's parameters and buffers on the host.
std::vector<NamedTensor> copy_to_host(const torch::nn::Module& module);

/// Writes tensors that are on the host. The path holds the whole file or none (WholeFile). Returns
/// size and SHA-256 of the file. Throws CheckpointError, also for a type that the format lacks.
FileDigest write_model_file(const std::string& path, const std::vector<NamedTensor>& tensors);

}  // namespace gossamer::apps
