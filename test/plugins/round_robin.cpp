// A round-robin tournament: every rank meets every other rank once in a period. The circle method,
// with one rank in the middle where their number is even, and one at rest where it is odd.

#include <utility>

#include "base/options.hpp"
#include "topology/registry.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_round_robin(const World& world, const Options& /*options*/,
                                           std::span<const TopologyEntry> /*own*/) {
  const int n = world.size;
  const int circle = n % 2 == 0 ? n - 1 : n;
  std::vector<Round> rounds;
  for (int k = 0; k < circle; ++k) {
    std::vector<Edge> edges;
    for (int i = 0; i < circle; ++i) {
      const int j = (k - i + circle) % circle;
      if (i < j) edges.push_back(averaging_edge({i, j}));
      if (i == j && n % 2 == 0) edges.push_back(averaging_edge({i, n - 1}));
    }
    rounds.push_back(complete_round(std::move(edges), n));
  }
  return make_periodic("round-robin", std::move(rounds));
}

}  // namespace gossamer
