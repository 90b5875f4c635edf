#pragma once
// Ranks in rows and columns, paired along one direction at a time: the common part of grid and
// torus.

#include <memory>
#include <string>

#include "base/options.hpp"
#include "topology/topology.hpp"

namespace gossamer {

/// Rank r stands in row r / columns. With `wraps` the two ends of a line are neighbours. Reads the
/// option `rows`, which must divide the number of ranks; the default is the most nearly square
/// rectangle with no more rows than columns. Throws ConfigError.
std::unique_ptr<Topology> make_lattice(std::string name, bool wraps, const World& world,
                                       const Options& options);

}  // namespace gossamer
