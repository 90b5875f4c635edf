#pragma once
// Whether a run can continue from a checkpoint.

#include <map>
#include <string>
#include <vector>

#include "apps/train/run_config.hpp"
#include "base/types.hpp"
#include "core/checkpoint/manifest.hpp"

namespace gossamer::apps {

/// The configuration as Manifest::run holds it: a path may have bytes that JSON cannot hold, so
/// they are escaped.
std::map<std::string, std::string> values_for_manifest(const RunConfig& config);

/// The first value in which a checkpoint's run and this one differ, as `optimizer.lr was 0.5 and is
/// 0.001`. Values that do not change what is computed do not count, and with `reshapes` nor does
/// the topology. Empty: both are of the same configuration.
std::string first_difference(const Manifest& manifest, const RunConfig& config, bool reshapes);

/// Compares a checkpoint with the run that is to continue from it. Throws CheckpointError if the
/// model, the algorithm, the optimizer's kind or the type of the parameters differ, and unless
/// `reshapes` if the number of ranks, the topology or train.accumulate differ. Returns the other
/// differences, one sentence each.
std::vector<std::string> check_resumable(const Manifest& manifest, const RunConfig& config,
                                         const World& world, const std::string& path,
                                         bool reshapes = false);

}  // namespace gossamer::apps
