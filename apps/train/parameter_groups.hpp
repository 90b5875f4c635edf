#pragma once
// Reads `optimizer.groups` of a configuration.

#include <string>
#include <vector>

#include "base/options.hpp"
#include "core/parameter_group.hpp"

namespace gossamer::apps {

/// The groups of the section `optimizer`, whose optimizer is called `name`. A group lacks what it
/// shares with the section: a group with other `betas` has the section's `eps`. Throws ConfigError
/// with the place in the file.
std::vector<ParameterGroup> read_parameter_groups(const Options& optimizer, const std::string& name,
                                                  double lr);

}  // namespace gossamer::apps
