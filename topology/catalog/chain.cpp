// Ranks in a row; each mixes with both neighbours in every round. The diameter is n - 1, so plain
// gossip is slow here. Source: the chain of Vogels et al., "RelaySum for Decentralized Deep
// Learning on Heterogeneous Data", NeurIPS 2021.

#include "base/options.hpp"
#include "topology/graph.hpp"
#include "topology/registry.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_chain(const World& world, const Options& /*options*/,
                                     std::span<const TopologyEntry> /*own*/) {
  std::vector<Link> links;
  for (int rank = 1; rank < world.size; ++rank) links.emplace_back(rank - 1, rank);
  return make_periodic("chain", {metropolis_round(links, world.size)});
}

}  // namespace gossamer
