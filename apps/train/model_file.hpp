#pragma once
// Writes models as safetensors files: a JSON header with names, types, shapes and offsets, then the
// raw values. Reading such a file runs no code. Python reads it with safetensors.torch.load_file.
// Format: https://github.com/huggingface/safetensors.

#include <string>
#include <vector>

#include "core/torch/parameters.hpp"

namespace gossamer::apps {

/// Writes the tensors, which must be on the host, in row-major order. A file with this name is
/// never half written (WholeFile). Throws CheckpointError if the file cannot be written, or if a
/// tensor is not float32, float64, bfloat16 or int64.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

}  // namespace gossamer::apps
