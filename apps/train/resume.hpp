#pragma once
// Whether a run can continue from a checkpoint.

#include <map>
#include <string>
#include <vector>

#include "apps/train/run_config.hpp"
#include "base/types.hpp"
#include "core/checkpoint/manifest.hpp"

namespace gossamer::apps {

/// The configuration as Manifest::run holds it.
std::map<std::string, std::string> values_for_manifest(const RunConfig& config);

/// Compares a checkpoint with the run that is to continue from it. Throws CheckpointError if the
/// model, the algorithm, the optimizer's kind or the type of the parameters differ, and unless
/// `reshapes` if the number of ranks or the topology differ. Returns the other differences, one
/// sentence each.
std::vector<std::string> check_resumable(const Manifest& manifest, const RunConfig& config,
                                         const World& world, const std::string& path,
                                         bool reshapes = false);

}  // namespace gossamer::apps
