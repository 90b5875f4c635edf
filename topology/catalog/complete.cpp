// Every rank averages with all others in every round: x <- J x, the fastest averaging there is and
// the most expensive. Source: the optimum of Xiao and Boyd, "Fast linear iterations for distributed
// averaging", Systems & Control Letters 53 (2004), on the complete graph.

#include <numeric>
#include <utility>

#include "base/options.hpp"
#include "topology/registry.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_complete(const World& world, const Options& /*options*/,
                                        std::span<const TopologyEntry> /*own*/) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_periodic("complete",
                       {complete_round({averaging_edge(std::move(ranks))}, world.size)});
}

}  // namespace gossamer
