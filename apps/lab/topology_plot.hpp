#pragma once
// Drawings of the rounds of a topology: one circle of ranks per round, pairs as lines, groups as
// shapes, messages in one direction as arrows, ranks that sit out hollow.

#include <string>

#include "topology/topology.hpp"

namespace gossamer::apps {

/// Draws at most 16 rounds into `path`, whose name ends with .svg or .png. Throws ConfigError for
/// other names, for more than 512 ranks, for files that cannot be written, and when the program was
/// built without cairo.
void plot_topology(const Topology& topology, const World& world, const std::string& path);

}  // namespace gossamer::apps
