// As grid, but the ends of every row and column are neighbours, too. Source: the torus of Koloskova
// et al., "A unified theory of decentralized SGD with changing topology and local updates", ICML
// 2020, taken apart into matchings as in Wang et al., "MATCHA", 2019. A prime number of ranks is
// one circle.

#include "topology/catalog/lattice.hpp"
#include "topology/registry.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_torus(const World& world, const Options& options,
                                     std::span<const TopologyEntry> /*own*/) {
  return make_lattice("torus", /*wraps=*/true, world, options);
}

}  // namespace gossamer
