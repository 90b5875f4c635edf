#include "test/support/recursion/ranks.hpp"

#include <algorithm>

namespace gossamer::recursion {
namespace {

/// Gives every rank the mean over the ranks of its node.
void average_in_nodes(const Ranks& ranks, std::vector<Gradients>& gradients) {
  const auto size = static_cast<std::size_t>(ranks.setup.topology->round(0).node_size);
  if (size == 1) return;
  for (std::size_t first = 0; first < gradients.size(); first += size) {
    for (std::size_t i = 0; i < ranks.setup.parameters.size(); ++i) {
      std::vector<double> mean;
      for (std::size_t rank = first; rank < first + size; ++rank) {
        const std::vector<double>& part = gradients[rank][i];
        mean.resize(std::max(mean.size(), part.size()));
        for (std::size_t e = 0; e < part.size(); ++e) {
          mean[e] += part[e] / static_cast<double>(size);
        }
      }
      for (std::size_t rank = first; rank < first + size; ++rank) gradients[rank][i] = mean;
    }
  }
}

}  // namespace

/// Gossip whose nodes average their gradients.
Algorithm node_gossip(const Ranks&) {
  return [](Ranks& ranks, Step& step) {
    average_in_nodes(ranks, step.gradients);
    if (step.number > 0) ranks.mix(step.number - 1);
    ranks.update(step);
  };
}

}  // namespace gossamer::recursion
