#pragma once
// Reads `optimizer.groups` of a configuration.

#include <span>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "core/bucket/parameter_group.hpp"
#include "optim/registry.hpp"

namespace gossamer::apps {

/// The section `optimizer`, as far as it has been read.
struct OptimizerSection {
  Options options;
  /// The name of the optimizer.
  std::string name;
  const Optimizer& optimizer;
  double lr = 0.0;
  /// A user's rows.
  std::span<const OptimizerEntry> own = {};
};

/// The groups of the section. What a group does not give is the section's: a group with other
/// `betas` has the section's `eps`. Throws ConfigError with the place in the file.
std::vector<ParameterGroup> read_parameter_groups(const OptimizerSection& section);

}  // namespace gossamer::apps
