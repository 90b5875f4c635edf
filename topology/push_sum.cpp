#include "topology/push_sum.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

/// The weight of every node of `size` ranks; its ranks must have the same one.
std::vector<double> weights_of_nodes(const std::vector<double>& weights, int size) {
  std::vector<double> nodes;
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    if (rank % static_cast<std::size_t>(size) == 0) {
      nodes.push_back(weights[rank]);
    } else if (weights[rank] != nodes.back()) {
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

Round PushSum::advance(const Round& round) {
  const std::vector<double> before =
      round.node_size > 1 ? weights_of_nodes(weights_, round.node_size) : weights_;
  // Edges among equals stay edges, which move less; the others become arcs.
  std::vector<Edge> edges;
  std::vector<Arc> arcs = round.arcs;
  for (const Edge& edge : round.edges) {
    if (all_equal(edge, before)) {
      edges.push_back(edge);
    } else {
      append_arcs(edge, arcs);
    }
  }
  std::vector<double> after = before;
  for (const Arc& arc : arcs) after[static_cast<std::size_t>(arc.to)] = 0.0;
  for (const Arc& arc : arcs) {
    after[static_cast<std::size_t>(arc.to)] +=
        arc.weight * before[static_cast<std::size_t>(arc.from)];
  }
  for (Arc& arc : arcs) {
    arc.weight *=
        before[static_cast<std::size_t>(arc.from)] / after[static_cast<std::size_t>(arc.to)];
  }
  for (std::size_t rank = 0; rank < weights_.size(); ++rank) {
    weights_[rank] = after[rank / static_cast<std::size_t>(round.node_size)];
  }
  Round mixed = fill_round(std::move(edges), static_cast<int>(before.size()), std::move(arcs));
  mixed.node_size = round.node_size;
  return mixed;
}

Round next_round(const Topology& topology, std::int64_t k, PushSum& push_sum) {
  Round round = topology.round(k);
  check_round(round, static_cast<int>(push_sum.weights().size()), topology.directed());
  if (topology.directed()) return push_sum.advance(round);
  return round;
}

}  // namespace gossamer
