#pragma once
// Topologies that users write down, in YAML or JSON; what `gossamer topology show --json` writes
// can be read back.
//
//   world_size: 4
//   directed: false                      # optional
//   edges: [[0, 1], [1, 2], [2, 3]]      # a graph: every round the same, weights from the degrees
//                                        # (graph.hpp); directed: from the first to the second
//
// or, in place of `edges`, the rounds of one period:
//
//   rounds:
//     - edges: [[0, 1], {ranks: [2, 3], weight: 0.7}]       # pairs and groups that average
//     - arcs: [{from: 0, to: 1, weight: 0.5}, [1, 0, 0.5]]  # one weight per message
//
// A rank with arcs but without one to itself keeps what it does not give away. Ranks that a round
// does not name sit it out.

#include <cstdint>
#include <string>
#include <vector>

#include "topology/topology.hpp"

namespace gossamer {

struct TopologyFile {
  int world_size = 0;
  bool directed = false;
  /// Filled up with ranks that sit out; rules of verify.hpp may be broken.
  std::vector<Round> rounds = {};
};

/// Larger files are refused.
inline constexpr std::int64_t kLargestTopologyFile = std::int64_t{16} << 20;

/// Throws ConfigError for files that cannot be read, are too large, or say what no topology means.
TopologyFile read_topology_file(const std::string& path);

/// Rounds without a check, to look for what is wrong with them.
std::unique_ptr<Topology> unchecked_topology(TopologyFile file);

}  // namespace gossamer
