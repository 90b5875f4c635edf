// Nodes meet as ranks do in one-peer-exp, at distances 1, 2, 4, ..., but only half of the pairs of
// nodes meet at a time. The ranks of such a pair average with each other over the network. The
// ranks of the other nodes average inside their node, which keeps links and network cards from
// being crowded. Source: Wang et al., "From Promise to Practice: Realizing High-performance
// Decentralized Training", ICLR 2025.
//
// Pairs at one distance are counted by their smaller node; the odd ones meet first, then the even
// ones. So two rounds per distance, and the exact mean after all of them.
//
// Two special cases, in which this would waste rounds:
// - One rank per node: a rank has no peer inside its node, and half of the ranks would idle. All
//   pairs of nodes meet at once instead, as in one-peer-exp.
// - One node: there are no pairs of nodes. All ranks average in every round, as in complete.

#include <bit>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "base/options.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

enum class Meeting { kOddPairs, kEvenPairs, kAllPairs };

bool meets(Meeting meeting, int pair) {
  if (meeting == Meeting::kAllPairs) return true;
  return (pair % 2 == 1) == (meeting == Meeting::kOddPairs);
}

std::vector<int> ranks_of(int node, const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.node_size));
  std::iota(ranks.begin(), ranks.end(), node * world.node_size);
  return ranks;
}

Round round_at(int distance, Meeting meeting, const World& world) {
  const int nodes = world.size / world.node_size;
  std::vector<Edge> edges;
  int pair = 0;
  for (int node = 0; node < nodes; ++node) {
    if ((node & distance) != 0) continue;
    std::vector<int> ranks = ranks_of(node, world);
    std::vector<int> others = ranks_of(node + distance, world);
    if (meets(meeting, pair)) {
      ranks.insert(ranks.end(), others.begin(), others.end());
    } else {
      edges.push_back(averaging_edge(std::move(others)));
    }
    edges.push_back(averaging_edge(std::move(ranks)));
    ++pair;
  }
  return complete_round(std::move(edges), world.size);
}

}  // namespace

bool alternating_exp_ring_fits(const World& world) {
  if (world.size < 1 || world.node_size < 1 || world.size % world.node_size != 0) return false;
  return std::has_single_bit(static_cast<unsigned>(world.size / world.node_size));
}

std::unique_ptr<Topology> make_alternating_exp_ring(const World& world, const Options& /*options*/,
                                                    std::span<const TopologyEntry> /*own*/) {
  if (!alternating_exp_ring_fits(world)) {
    throw std::logic_error("alternating-exp-ring: the world does not fit.");
  }
  const int nodes = world.size / world.node_size;
  std::vector<Round> rounds;
  for (int distance = 1; distance <= nodes / 2; distance *= 2) {
    if (world.node_size == 1) {
      rounds.push_back(round_at(distance, Meeting::kAllPairs, world));
      continue;
    }
    rounds.push_back(round_at(distance, Meeting::kOddPairs, world));
    rounds.push_back(round_at(distance, Meeting::kEvenPairs, world));
  }
  if (nodes == 1)
    rounds.push_back(complete_round({averaging_edge(ranks_of(0, world))}, world.size));
  return make_periodic("alternating-exp-ring", std::move(rounds));
}

}  // namespace gossamer
