#include "topology/push_sum.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

/// Ranks that have gone through the same rounds by sums in another order differ by less.
constexpr double kRounding = 1e-9;

/// The weight of every node of `size` ranks; its ranks must have the same one.
std::vector<double> weights_of_nodes(const std::vector<double>& weights, int size) {
  std::vector<double> nodes;
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    if (rank % static_cast<std::size_t>(size) == 0) {
      nodes.push_back(weights[rank]);
    } else if (std::abs(weights[rank] - nodes.back()) > kRounding * nodes.back()) {
      throw ConfigError(concat(
          "Ranks ", rank - 1, " and ", rank, " of one node have different push-sum weights (",
          shortest(nodes.back()), " and ", shortest(weights[rank]),
          "), so their node has no common average. Do not combine hierarchical rounds with ",
          "directed rounds inside nodes"));
    }
  }
  return nodes;
}

bool all_equal(const Edge& edge, const std::vector<double>& values) {
  const auto value = [&values](int rank) { return values[static_cast<std::size_t>(rank)]; };
  return std::ranges::all_of(edge.ranks,
                             [&](int rank) { return value(rank) == value(edge.ranks.front()); });
}

}  // namespace

PushSum::Step PushSum::step(const Round& round) const {
  Step step{.before = round.node_size > 1 ? weights_of_nodes(weights_, round.node_size) : weights_,
            .after = {},
            .edges = {},
            .arcs = round.arcs};
  for (const Edge& edge : round.edges) {
    if (all_equal(edge, step.before)) {
      step.edges.push_back(edge);
    } else {
      append_arcs(edge, step.arcs);
    }
  }
  step.after = step.before;
  for (const Arc& arc : step.arcs) step.after[static_cast<std::size_t>(arc.to)] = 0.0;
  for (const Arc& arc : step.arcs) {
    step.after[static_cast<std::size_t>(arc.to)] +=
        arc.weight * step.before[static_cast<std::size_t>(arc.from)];
  }
  return step;
}

void PushSum::take(const Step& step, int node_size) {
  for (std::size_t rank = 0; rank < weights_.size(); ++rank) {
    weights_[rank] = step.after[rank / static_cast<std::size_t>(node_size)];
  }
}

Round PushSum::advance(const Round& round) {
  Step taken = step(round);
  for (Arc& arc : taken.arcs) {
    arc.weight *= taken.before[static_cast<std::size_t>(arc.from)] /
                  taken.after[static_cast<std::size_t>(arc.to)];
  }
  take(taken, round.node_size);
  const auto num_members = static_cast<int>(taken.before.size());
  Round mixed = fill_round(std::move(taken.edges), num_members, std::move(taken.arcs));
  mixed.node_size = round.node_size;
  return mixed;
}

void PushSum::skip(const Round& round) { take(step(round), round.node_size); }

Round next_round(const Topology& topology, std::int64_t k, PushSum& push_sum) {
  Round round = topology.round(k);
  check_round(round, static_cast<int>(push_sum.weights().size()), topology.directed());
  if (topology.directed()) return push_sum.advance(round);
  return round;
}

}  // namespace gossamer
