// Ranks on a circle; each hears from both neighbours in every round and takes a third of each.
// Source: the ring of Lian et al., "Can decentralized algorithms outperform centralized
// algorithms?", NeurIPS 2017. `ring` is the same graph taken apart into pairs.

#include <utility>

#include "base/options.hpp"
#include "topology/graph.hpp"
#include "topology/registry.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_static_ring(const World& world, const Options& /*options*/,
                                           std::span<const TopologyEntry> /*own*/) {
  std::vector<Link> links;
  for (int rank = 0; rank < world.size; ++rank) links.emplace_back(rank, (rank + 1) % world.size);
  return make_periodic("static-ring", {metropolis_round(links, world.size)});
}

}  // namespace gossamer
