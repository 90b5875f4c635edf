// A tree with rank 0 as its root; rank r mixes with ranks (r - 1) / 2, 2 r + 1 and 2 r + 2 in every
// round. The diameter is about 2 log2(n). Source: the binary tree of Vogels et al., "RelaySum for
// Decentralized Deep Learning on Heterogeneous Data", NeurIPS 2021.

#include "base/options.hpp"
#include "topology/graph.hpp"
#include "topology/registry.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_binary_tree(const World& world, const Options& /*options*/,
                                           std::span<const TopologyEntry> /*own*/) {
  std::vector<Link> links;
  for (int rank = 1; rank < world.size; ++rank) links.emplace_back((rank - 1) / 2, rank);
  return make_periodic("binary-tree", {metropolis_round(links, world.size)});
}

}  // namespace gossamer
