// In round k each rank hears from the one 2^k before it (counted on a circle), k = 0, 1, ...,
// ceil(log2 n) - 1, and averages. One message per rank and round, for any number of ranks; the
// exact mean after a period if n is a power of two. Sources of the one-peer exponential graph: Ying
// et al., "Exponential graph is provably efficient for decentralized deep training", NeurIPS 2021;
// Assran et al., "Stochastic gradient push for distributed deep learning", ICML 2019.

#include <utility>

#include "base/options.hpp"
#include "topology/graph.hpp"
#include "topology/registry.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_directed_one_peer_exp(const World& world, const Options& /*options*/,
                                                     std::span<const TopologyEntry> /*own*/) {
  const std::int64_t size = world.size;
  std::vector<Round> rounds;
  for (std::int64_t distance = 1; distance < size; distance *= 2) {
    std::vector<Link> links;
    for (std::int64_t rank = 0; rank < size; ++rank) {
      links.emplace_back(static_cast<int>(rank), static_cast<int>((rank + distance) % size));
    }
    rounds.push_back(directed_round(links, world.size));
  }
  if (rounds.empty()) rounds.push_back(complete_round({}, world.size));
  return make_periodic("directed-one-peer-exp", std::move(rounds), /*directed=*/true);
}

}  // namespace gossamer
