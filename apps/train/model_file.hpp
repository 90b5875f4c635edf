#pragma once
// Models as safetensors files. Python reads them with safetensors.torch.load_file().

#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/sha256.hpp"
#include "core/torch/parameters.hpp"

namespace gossamer::apps {

/// Copies of a module's parameters and buffers on the host.
std::vector<NamedTensor> copy_to_host(const torch::nn::Module& module);

/// Writes tensors that are on the host. The path holds the whole file or none (WholeFile). Returns
/// size and SHA-256 of the file. Throws CheckpointError, also for a type that the format lacks.
FileDigest write_model_file(const std::string& path, const std::vector<NamedTensor>& tensors);

/// Loads the values of a safetensors file into the parameters and buffers of the same names, of any
/// types. Compares names and shapes first. Throws CheckpointError that tells the difference and
/// ends with `advice`, unless `partial`; then loads the values that fit, and returns the difference
/// as a sentence. Returns an empty text if there is no difference.
std::string load_model_file(const std::string& path, torch::nn::Module& module, bool partial,
                            std::string_view advice);

/// Throws CheckpointError for a parameter or buffer of a type that the format lacks.
void check_savable(const torch::nn::Module& module);

}  // namespace gossamer::apps
