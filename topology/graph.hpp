#pragma once
// Makes rounds from graphs: the links decide the weights.

#include <utility>
#include <vector>

#include "topology/topology.hpp"

namespace gossamer {

/// A pair of ranks; in directed graphs it leads from the first to the second.
using Link = std::pair<int, int>;

/// Metropolis-Hastings weights: two neighbours of degrees a and b take 1 / (1 + max(a, b)) of each
/// other, and every rank keeps the rest. Doubly stochastic for any graph. Source: Xiao, Boyd and
/// Lall, "A scheme for robust distributed sensor fusion based on average consensus", IPSN 2005.
/// Links in both orders or given twice count once, links of a rank with itself not at all. Links
/// must name ranks of the world. Throws std::logic_error.
Round metropolis_round(const std::vector<Link>& links, int world_size);

/// A rank with links to d others keeps 1 / (1 + d) of its value and gives as much to each of them.
/// Columns sum to one (Assran et al., "Stochastic gradient push", ICML 2019, section 3). Otherwise
/// as metropolis_round().
Round directed_round(const std::vector<Link>& links, int world_size);

/// Whether there is exactly one way from each rank to each other rank, along the messages of an
/// undirected round. False for rounds of two levels.
bool is_tree(const Round& round);

}  // namespace gossamer
