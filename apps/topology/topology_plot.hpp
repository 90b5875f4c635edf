#pragma once
// Draws the rounds of a topology. Each round is one circle of ranks: pairs are lines, groups are
// shapes, messages in one direction are arrows, and ranks that sit out are hollow.

#include <string>

#include "topology/topology.hpp"

namespace gossamer::apps {

/// Draws at most 16 rounds into the file `path`, which must end with .svg or .png. Throws
/// ConfigError for another name, for more than 512 ranks, for a file that cannot be written, and
/// when the program was built without cairo.
void plot_topology(const Topology& topology, const World& world, const std::string& path);

}  // namespace gossamer::apps
