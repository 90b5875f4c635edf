#pragma once
// Topologies that users write down, in YAML or JSON. The output of `gossamer topology show --json`
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
// A rank that has arcs but none to itself keeps the part of its value that it does not give away.
// Ranks that a round does not name sit the round out.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.hpp"
#include "topology/topology.hpp"

namespace gossamer {

struct TopologyFile {
  int world_size = 0;
  bool directed = false;
  /// The text names every rank, also ranks that sit out. Rules of verify.hpp may be broken.
  std::vector<Round> rounds = {};
  /// The topology's name in messages.
  std::string name = "from-file";
};

/// Larger files are refused.
inline constexpr std::int64_t kLargestTopologyFile = std::int64_t{16} << 20;

/// Throws ConfigError for a file that cannot be read, is too large, or describes no topology.
TopologyFile read_topology_file(const std::string& path);
/// Reads a text; messages name its `source`.
TopologyFile read_topology_text(std::string_view text, const std::string& source);

/// A topology of the file's rounds. Throws ConfigError about `key` of `options` where the world has
/// another number of ranks, and where a rule of verify.hpp is broken.
std::unique_ptr<Topology> checked_topology(TopologyFile file, const std::string& source,
                                           const World& world, const Options& options,
                                           std::string_view key);

/// A topology of the file's rounds, which are not checked; for find_violation().
std::unique_ptr<Topology> unchecked_topology(TopologyFile file);

}  // namespace gossamer
