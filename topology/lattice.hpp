#pragma once
// Ranks in rows and columns, paired along one direction at a time; what grid and torus share.

#include <memory>
#include <string>

#include "base/options.hpp"
#include "topology/topology.hpp"

namespace gossamer {

/// Rank r stands in row r / columns. `wraps`: the ends of a line are neighbours, too. Reads the
/// option `rows`, which must divide the number of ranks; by default the rectangle is as nearly
/// square as it can be, with no more rows than columns. Throws ConfigError.
std::unique_ptr<Topology> make_lattice(std::string name, bool wraps, const World& world,
                                       const Options& options);

}  // namespace gossamer
