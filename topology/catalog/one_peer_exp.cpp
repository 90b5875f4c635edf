// In round k each rank averages with the rank whose number differs in bit k: distances 1, 2, 4, ...
// After log2(n) rounds all have the exact mean. Source: Ying et al., "Exponential graph is provably
// efficient for decentralized deep training", NeurIPS 2021. Theirs is directed, each rank hearing
// from the one 2^k before it; this is its undirected form (a hypercube), so that a round is a set
// of pairs.

#include <bit>
#include <stdexcept>
#include <utility>

#include "base/options.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

Round pairs_at(unsigned distance, int world_size) {
  std::vector<Edge> edges;
  for (int rank = 0; rank < world_size; ++rank) {
    const unsigned peer = static_cast<unsigned>(rank) ^ distance;
    if (static_cast<int>(peer) > rank) {
      edges.push_back(averaging_edge({rank, static_cast<int>(peer)}));
    }
  }
  return complete_round(std::move(edges), world_size);
}

}  // namespace

bool one_peer_exp_fits(const World& world) {
  return world.size >= 1 && std::has_single_bit(static_cast<unsigned>(world.size));
}

std::unique_ptr<Topology> make_one_peer_exp(const World& world, const Options& /*options*/,
                                            std::span<const TopologyEntry> /*own*/) {
  if (!one_peer_exp_fits(world)) throw std::logic_error("one-peer-exp: the world does not fit.");
  std::vector<Round> rounds;
  for (unsigned distance = 1; distance < static_cast<unsigned>(world.size); distance *= 2) {
    rounds.push_back(pairs_at(distance, world.size));
  }
  if (rounds.empty()) rounds.push_back(complete_round({}, world.size));
  return make_periodic("one-peer-exp", std::move(rounds));
}

}  // namespace gossamer
