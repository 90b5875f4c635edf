#pragma once
// What measured pairs of ranks say about the links of a cluster: how fast a link is within a node
// and between nodes. Where every two nodes have a pair, the pairs also say which nodes lie apart.

#include <utility>
#include <vector>

#include "apps/lab/plan/links.hpp"
#include "apps/lab/plan/regions.hpp"
#include "base/types.hpp"

namespace gossamer::apps {

using RankPair = std::pair<int, int>;

struct PairFigures {
  RankPair pair = {};
  bool is_within = false;
  LinkSpeed speed = {};
};

/// The regions that the links show: consecutive nodes that are near one another. Near is a latency
/// of at most a millisecond or twice the lowest, and half the highest bandwidth at least. The path
/// between two regions is as slow as the slowest of its links. A slow host should come first or
/// last. In the middle it has two paths, to the nodes before it and to the nodes after it. A plan
/// may then use both paths at once. Returns no regions where all nodes
/// are near, where there are more than kMostRegions, and where two nodes have no pair.
Regions regions_of(const std::vector<PairFigures>& pairs, const World& world);

/// The regions, and medians of the links within nodes and of those between nodes of one region.
/// Where every node lies alone, `between` is the fastest link across: a node's own link carries at
/// least so much.
Links links_of(const std::vector<PairFigures>& pairs, const World& world);

}  // namespace gossamer::apps
