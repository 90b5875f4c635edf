// Ranks in rows and columns; in each round pairs of neighbours along one direction average.
// Source: the grid of Lian et al., NeurIPS 2017, taken apart into matchings as in Wang et al.,
// "MATCHA: Speeding up decentralized SGD via matching decomposition sampling", 2019. A prime number
// of ranks is one row.

#include "topology/catalog/lattice.hpp"
#include "topology/registry.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_grid(const World& world, const Options& options,
                                    std::span<const TopologyEntry> /*own*/) {
  return make_lattice("grid", /*wraps=*/false, world, options);
}

}  // namespace gossamer
