#pragma once
// The regions of a cluster that lies in several places, and the paths between them. A file of links
// (links.hpp) has them as
//
//   regions: [{name: europe, nodes: 2}, {name: asia, nodes: 2}]
//   across:  [{between: [europe, asia], latency_s: 0.08, bandwidth_bytes_per_s: 25e6}]
//
// The nodes of the first region come first. Every pair of regions stands in `across` once.

#include <string>
#include <vector>

#include "base/options.hpp"

namespace gossamer::apps {

inline constexpr int kMostRegions = 64;

/// The path of one node to the nodes of another region; both directions work at the same time.
struct RegionPath {
  /// Seconds until the first byte arrives. Replaces the latency between nodes of one region.
  double latency_s = 0.0;
  /// Bytes per second of one node; more than 0.
  double bandwidth = 1.0;
  friend bool operator==(const RegionPath&, const RegionPath&) = default;
};

struct Region {
  std::string name = {};
  int num_nodes = 1;
  friend bool operator==(const Region&, const Region&) = default;
};

struct Regions {
  /// Empty: the cluster is in one place.
  std::vector<Region> list = {};
  /// [from][to], symmetric; the diagonal has no meaning.
  std::vector<std::vector<RegionPath>> paths = {};

  [[nodiscard]] int count() const { return static_cast<int>(list.size()); }
  [[nodiscard]] int num_nodes() const;
  /// True: there are two regions at least, with equally many nodes in each.
  [[nodiscard]] bool are_equal() const;
  /// The index of the region of each node.
  [[nodiscard]] std::vector<int> region_of_nodes() const;
  friend bool operator==(const Regions&, const Regions&) = default;
};

/// Reads `regions` and `across` of a section; no regions if neither is given. Throws ConfigError
/// for a pair that is missing or given twice, for unknown names, and for impossible values.
Regions read_regions(const Options& section);

}  // namespace gossamer::apps
