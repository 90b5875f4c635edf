#pragma once
// Models as safetensors files: a JSON header of names, types, shapes and offsets, then the raw
// values. Reading one runs no code, and Python reads it with safetensors.torch.load_file.
// Format: https://github.com/huggingface/safetensors.

#include <string>
#include <vector>

#include "core/torch/parameters.hpp"

namespace gossamer::apps {

/// Writes the tensors in row-major order. The name never holds half a model (WholeFile). Tensors
/// are on the host. Throws CheckpointError.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

}  // namespace gossamer::apps
