#pragma once
// Models from TorchScript files, beyond what all models do.

#include <string>

#include "apps/models/models.hpp"

namespace gossamer::apps {

/// Loads a file. Throws DataError.
std::shared_ptr<Model> load_torchscript(const std::string& path, const SampleShape& shape);
/// Writes a model from load_torchscript() with its present values; Python reads the file with
/// torch.jit.load(). The path holds the whole file or none. Throws CheckpointError, and
/// std::logic_error for another model.
void save_torchscript(const Model& model, const std::string& path);

}  // namespace gossamer::apps
