#include "topology/topology.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/text.hpp"
#include "topology/verify.hpp"

namespace gossamer {
namespace {

class PeriodicTopology final : public Topology {
 public:
  PeriodicTopology(std::string name, std::vector<Round> rounds, bool directed)
      : name_(std::move(name)), rounds_(std::move(rounds)), directed_(directed) {}

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::optional<std::int64_t> period() const override {
    return static_cast<std::int64_t>(rounds_.size());
  }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    return rounds_[static_cast<std::size_t>(k) % rounds_.size()];
  }
  [[nodiscard]] bool directed() const override { return directed_; }

 private:
  std::string name_;
  std::vector<Round> rounds_;
  bool directed_;
};

std::size_t ranks_in(const Round& round) {
  std::size_t count = 0;
  for (const Edge& edge : round.edges) count += edge.ranks.size();
  int last = -1;
  for (const Arc& arc : round.arcs) count += std::exchange(last, arc.to) == arc.to ? 0 : 1;
  return count * static_cast<std::size_t>(std::max(round.node_size, 1));
}

/// Sorts by a key. Most topologies make their rounds in order, and a million ranks take long to
/// sort.
template <class Items, class Key>
void order(Items& items, const Key& key) {
  if (!std::ranges::is_sorted(items, {}, key)) std::ranges::sort(items, {}, key);
}

}  // namespace

const Edge& Round::edge_of(int rank) const {
  for (const Edge& edge : edges) {
    if (std::ranges::find(edge.ranks, rank) != edge.ranks.end()) return edge;
  }
  throw std::logic_error(concat("A round has no edge for rank ", rank, "."));
}

void append_arcs(const Edge& edge, std::vector<Arc>& arcs) {
  for (const int to : edge.ranks) {
    for (const int from : edge.ranks) {
      arcs.push_back({from, to, from == to ? edge.weight : edge.share()});
    }
  }
}

Edge averaging_edge(Members ranks) {
  if (ranks.empty()) throw std::logic_error("An edge needs at least one rank.");
  std::ranges::sort(ranks);
  const double weight = 1.0 / static_cast<double>(ranks.size());
  return {std::move(ranks), weight};
}

Round fill_round(std::vector<Edge> edges, int world_size, std::vector<Arc> arcs) {
  std::vector<bool> seen(static_cast<std::size_t>(std::max(world_size, 0)));
  const auto mark = [&seen](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (rank >= 0 && index < seen.size()) seen[index] = true;
  };
  for (Edge& edge : edges) {
    std::ranges::sort(edge.ranks);
    std::ranges::for_each(edge.ranks, mark);
  }
  for (const Arc& arc : arcs) {
    mark(arc.from);
    mark(arc.to);
  }
  for (int rank = 0; rank < world_size; ++rank) {
    if (!seen[static_cast<std::size_t>(rank)]) edges.push_back(averaging_edge({rank}));
  }
  order(edges, &Edge::ranks);
  order(arcs, [](const Arc& arc) { return std::pair(arc.to, arc.from); });
  return {.edges = std::move(edges), .arcs = std::move(arcs)};
}

Round complete_round(std::vector<Edge> edges, int world_size, std::vector<Arc> arcs) {
  Round round = fill_round(std::move(edges), world_size, std::move(arcs));
  check_round(round, world_size, /*directed=*/true);
  return round;
}

Round two_level_round(Round nodes, int node_size) {
  if (nodes.node_size != 1 || node_size < 1) {
    throw std::logic_error("two_level_round: there are two levels only, of one rank or more.");
  }
  nodes.node_size = node_size;
  return nodes;
}

Round with_arcs_for_groups(Round round, std::int64_t most) {
  if (most < 3) return round;
  const auto becomes_arcs = [most](const Edge& edge) {
    return edge.ranks.size() > 2 && std::ssize(edge.ranks) <= most;
  };
  for (const Edge& edge : round.edges) {
    if (becomes_arcs(edge)) append_arcs(edge, round.arcs);
  }
  std::erase_if(round.edges, becomes_arcs);
  // All ranks are there already, so this only orders the arcs.
  Round ordered = fill_round(std::move(round.edges), 0, std::move(round.arcs));
  ordered.node_size = round.node_size;
  return ordered;
}

Round flat_round(const Round& round, int world_size) {
  const int size = round.node_size;
  const auto averages = [](const Edge& edge) {
    return edge.weight == 1.0 / static_cast<double>(edge.ranks.size());
  };
  const bool in_edges =
      round.arcs.empty() && (size == 1 || std::ranges::all_of(round.edges, averages));
  if (in_edges && size == 1) return round;
  if (in_edges) {
    std::vector<Edge> edges;
    for (const Edge& edge : round.edges) {
      std::vector<int> ranks;
      for (const int node : edge.ranks) {
        for (int local = 0; local < size; ++local) ranks.push_back(node * size + local);
      }
      edges.push_back(averaging_edge(std::move(ranks)));
    }
    return fill_round(std::move(edges), world_size);
  }
  std::vector<Arc> nodes = round.arcs;
  for (const Edge& edge : round.edges) append_arcs(edge, nodes);
  std::vector<Arc> arcs;
  for (const Arc& arc : nodes) {
    for (int to = 0; to < size; ++to) {
      for (int from = 0; from < size; ++from) {
        arcs.push_back({arc.from * size + from, arc.to * size + to, arc.weight / size});
      }
    }
  }
  return fill_round({}, world_size, std::move(arcs));
}

std::unique_ptr<Topology> make_periodic(std::string name, std::vector<Round> rounds,
                                        bool directed) {
  if (rounds.empty()) throw std::logic_error(concat("Topology ", name, " has no rounds."));
  const auto world_size = static_cast<int>(ranks_in(rounds.front()));
  for (const Round& round : rounds) check_round(round, world_size, directed);
  return std::make_unique<PeriodicTopology>(std::move(name), std::move(rounds), directed);
}

std::int64_t rounds_times(std::int64_t rounds, std::int64_t factor) {
  if (factor > 0 && rounds > kManyRounds / factor) return kManyRounds;
  return rounds * factor;
}

void require_round_number(std::int64_t k) {
  if (k < 0)
    throw std::logic_error(concat("Rounds are counted from 0; there is no round ", k, "."));
}

void check_round(const Round& round, int world_size, bool directed) {
  if (const auto found = find_violation(round, world_size, directed)) {
    throw std::logic_error(found->text);
  }
}

}  // namespace gossamer
