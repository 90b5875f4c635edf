// In every round each rank hears from the ranks 1, 2, 4, ... before it (counted on a circle) and
// takes 1 / (ceil(log2 n) + 1) of each. Directed; doubly stochastic because all ranks do the same.
// Source: the static exponential graph of Ying et al., "Exponential graph is provably efficient for
// decentralized deep training", NeurIPS 2021.

#include <utility>

#include "base/options.hpp"
#include "topology/graph.hpp"
#include "topology/registry.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_static_exp(const World& world, const Options& /*options*/,
                                          std::span<const TopologyEntry> /*own*/) {
  const std::int64_t size = world.size;
  std::vector<Link> links;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    for (std::int64_t distance = 1; distance < size; distance *= 2) {
      links.emplace_back(static_cast<int>(rank), static_cast<int>((rank + distance) % size));
    }
  }
  return make_periodic("static-exp", {directed_round(links, world.size)}, /*directed=*/true);
}

}  // namespace gossamer
