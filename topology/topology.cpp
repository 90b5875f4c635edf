#include "gossamer/topology/topology.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "gossamer/core/base/text.hpp"

namespace gossamer {
namespace {

class PeriodicTopology final : public Topology {
 public:
  PeriodicTopology(std::string name, std::vector<Round> rounds)
      : name_(std::move(name)), rounds_(std::move(rounds)) {}

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::optional<std::int64_t> period() const override {
    return static_cast<std::int64_t>(rounds_.size());
  }
  [[nodiscard]] Round round(std::int64_t k) const override {
    if (k < 0) throw std::logic_error(concat(name_, ": there is no round ", k, "."));
    return rounds_[static_cast<std::size_t>(k) % rounds_.size()];
  }

 private:
  std::string name_;
  std::vector<Round> rounds_;
};

std::size_t ranks_in(const Round& round) {
  std::size_t count = 0;
  for (const Edge& edge : round.edges) count += edge.ranks.size();
  return count;
}

void check_edge(const Edge& edge) {
  const std::string ranks = join(edge.ranks, ", ");
  if (edge.ranks.empty()) throw std::logic_error("A round has an edge without ranks.");
  if (std::ranges::adjacent_find(edge.ranks, std::ranges::greater_equal()) != edge.ranks.end()) {
    throw std::logic_error(concat("The ranks of edge {", ranks, "} are not ascending."));
  }
  // Written so that a weight that is not a number fails, too.
  if (!(edge.weight >= 0.0 && edge.weight <= 1.0)) {
    throw std::logic_error(
        concat("The weight of edge {", ranks, "} is ", edge.weight, ", outside [0, 1]."));
  }
  if (edge.ranks.size() == 1 && edge.weight != 1.0) {
    throw std::logic_error(concat("Rank ", ranks, " is alone in its edge but has the weight ",
                                  edge.weight, ", not 1."));
  }
}

void mark_ranks(const Edge& edge, std::vector<bool>& seen) {
  for (const int rank : edge.ranks) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= seen.size()) {
      throw std::logic_error(
          concat("A round names rank ", rank, " in a world of ", seen.size(), " ranks."));
    }
    const auto index = static_cast<std::size_t>(rank);
    if (seen[index]) {
      throw std::logic_error(concat("Rank ", rank, " stands twice in one round."));
    }
    seen[index] = true;
  }
}

std::vector<bool> ranks_seen(const std::vector<Edge>& edges, int world_size) {
  std::vector<bool> seen(static_cast<std::size_t>(std::max(world_size, 0)));
  for (const Edge& edge : edges) mark_ranks(edge, seen);
  return seen;
}

}  // namespace

const Edge& Round::edge_of(int rank) const {
  for (const Edge& edge : edges) {
    if (std::ranges::find(edge.ranks, rank) != edge.ranks.end()) return edge;
  }
  throw std::logic_error(concat("A round has no edge for rank ", rank, "."));
}

Edge averaging_edge(std::vector<int> ranks) {
  if (ranks.empty()) throw std::logic_error("An edge needs at least one rank.");
  std::ranges::sort(ranks);
  const double weight = 1.0 / static_cast<double>(ranks.size());
  return {std::move(ranks), weight};
}

Round complete_round(std::vector<Edge> edges, int world_size) {
  const std::vector<bool> seen = ranks_seen(edges, world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    if (!seen[static_cast<std::size_t>(rank)]) edges.push_back(averaging_edge({rank}));
  }
  std::ranges::sort(edges, std::ranges::less(), &Edge::ranks);
  Round round{std::move(edges)};
  check_round(round, world_size);
  return round;
}

std::unique_ptr<Topology> make_periodic(std::string name, std::vector<Round> rounds) {
  if (rounds.empty()) throw std::logic_error(concat("Topology ", name, " has no rounds."));
  const auto world_size = static_cast<int>(ranks_in(rounds.front()));
  for (const Round& round : rounds) check_round(round, world_size);
  return std::make_unique<PeriodicTopology>(std::move(name), std::move(rounds));
}

void check_round(const Round& round, int world_size) {
  for (const Edge& edge : round.edges) check_edge(edge);
  const std::vector<bool> seen = ranks_seen(round.edges, world_size);
  const auto missing = std::ranges::find(seen, false);
  if (missing != seen.end()) {
    throw std::logic_error(
        concat("Rank ", missing - seen.begin(), " stands in no edge of a round."));
  }
  const auto first_rank = [](const Edge& edge) { return edge.ranks.front(); };
  if (!std::ranges::is_sorted(round.edges, std::ranges::less(), first_rank)) {
    throw std::logic_error("The edges of a round are not ordered by their smallest rank.");
  }
}

}  // namespace gossamer
