#include "topology/verify.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <utility>
#include <vector>

#include "base/sorted.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

constexpr double kSumTolerance = 1e-9;

/// Enough digits to see what breaks the tolerance, few enough to hide rounding.
std::string digits(double value) {
  std::ostringstream out;
  out << std::setprecision(10) << value;
  return out.str();
}

using Found = std::optional<Violation>;

/// One round under inspection; places are ranks, or nodes in rounds of two levels.
class RoundCheck {
 public:
  RoundCheck(const Round& round, int world_size, bool directed)
      : round_(round),
        world_size_(world_size),
        directed_(directed),
        place_name_(round.node_size > 1 ? "node" : "rank"),
        capital_(round.node_size > 1 ? "Node" : "Rank") {}

  Found run() {
    if (Found found = check_nodes()) return found;
    num_places_ = static_cast<std::size_t>(world_size_ / round_.node_size);
    if (Found found = check_edges()) return found;
    if (Found found = check_arcs()) return found;
    if (Found found = check_partition()) return found;
    return check_sums();
  }

 private:
  template <class... Parts>
  Violation broken(std::string rule, int place, const Parts&... parts) const {
    return {std::move(rule), place, -1, concat(parts...)};
  }

  Found check_nodes() const {
    if (world_size_ < 1) return broken("ranks", -1, "There is no rank.");
    if (round_.node_size >= 1 && world_size_ % round_.node_size == 0) return std::nullopt;
    return broken("ranks", -1, "Nodes of ", round_.node_size, " ranks do not divide the ",
                  world_size_, " ranks.");
  }

  Found check_place(int place) const {
    if (place >= 0 && static_cast<std::size_t>(place) < num_places_) return std::nullopt;
    return broken("ranks", place, "A round names ", place_name_, " ", place, " in a world of ",
                  num_places_, " ", place_name_, "s.");
  }

  // Written so that a weight that is not a number fails, too.
  static bool is_weight(double weight) { return weight >= 0.0 && weight <= 1.0; }

  Found check_edge(const Edge& edge) const {
    if (edge.ranks.empty()) return broken("partition", -1, "A round has an edge without ranks.");
    const int first = edge.ranks.front();
    const auto again = std::ranges::adjacent_find(edge.ranks, std::ranges::greater_equal());
    if (again != edge.ranks.end()) {
      const int rank = *again;
      if (rank == *std::next(again)) {
        return broken("partition", rank, capital_, " ", rank, " stands twice in one round.");
      }
      return broken("order", rank, "The ranks of edge {", join(edge.ranks, ", "),
                    "} are not ascending.");
    }
    for (const int rank : edge.ranks) {
      if (Found found = check_place(rank)) return found;
    }
    if (!is_weight(edge.weight)) {
      return broken("weight", first, "The weight of edge {", join(edge.ranks, ", "), "} is ",
                    edge.weight, ", outside [0, 1].");
    }
    if (edge.ranks.size() == 1 && edge.weight != 1.0) {
      return broken("weight", first, capital_, " ", first,
                    " is alone in its edge but has the weight ", edge.weight, ", not 1.");
    }
    return std::nullopt;
  }

  Found check_edges() {
    edges_of_.assign(num_places_, 0);
    for (const Edge& edge : round_.edges) {
      if (Found found = check_edge(edge)) return found;
      for (const int rank : edge.ranks) {
        if (++edges_of_[static_cast<std::size_t>(rank)] > 1) {
          return broken("partition", rank, capital_, " ", rank, " stands twice in one round.");
        }
      }
    }
    const auto first_rank = [](const Edge& edge) { return edge.ranks.front(); };
    if (!std::ranges::is_sorted(round_.edges, std::ranges::less(), first_rank)) {
      return broken("order", -1, "The edges of a round are not ordered by their smallest rank.");
    }
    return std::nullopt;
  }

  static std::pair<int, int> ends(const Arc& arc) { return {arc.to, arc.from}; }
  [[nodiscard]] std::string named(int place) const { return concat(place_name_, " ", place); }

  Found check_arcs() {
    given_.assign(num_places_, 0.0);
    taken_.assign(num_places_, 0.0);
    has_arcs_.assign(num_places_, false);
    for (const Arc& arc : round_.arcs) {
      for (const int place : {arc.from, arc.to}) {
        if (Found found = check_place(place)) return found;
        has_arcs_[static_cast<std::size_t>(place)] = true;
      }
      if (!is_weight(arc.weight)) {
        return broken("weight", arc.to, capital_, " ", arc.to, " takes ", arc.weight,
                      " of what it hears from ", named(arc.from), ", outside [0, 1].");
      }
      given_[static_cast<std::size_t>(arc.from)] += arc.weight;
      taken_[static_cast<std::size_t>(arc.to)] += arc.weight;
    }
    if (!std::ranges::is_sorted(round_.arcs, std::ranges::less(), ends)) {
      return broken("order", -1, "The arcs of a round are not ordered by `to`, then `from`.");
    }
    const auto twice = std::ranges::adjacent_find(round_.arcs, std::ranges::equal_to(), ends);
    if (twice != round_.arcs.end()) {
      return broken("arcs", twice->to, capital_, " ", twice->to, " hears twice from ",
                    named(twice->from), " in one round.");
    }
    return directed_ ? std::nullopt : check_pairs();
  }

  Found check_pairs() const {
    for (const Arc& arc : round_.arcs) {
      const bool heard = std::ranges::binary_search(round_.arcs, std::pair(arc.from, arc.to),
                                                    std::ranges::less(), ends);
      if (heard) continue;
      return broken("pairs", arc.to, capital_, " ", arc.to, " hears from ", named(arc.from),
                    ", but ", named(arc.from), " does not hear from ", named(arc.to),
                    "; only directed topologies may do that.");
    }
    return std::nullopt;
  }

  Found check_partition() const {
    for (std::size_t place = 0; place < num_places_; ++place) {
      const auto rank = static_cast<int>(place);
      if (edges_of_[place] == 0 && !has_arcs_[place]) {
        return broken("partition", rank, capital_, " ", rank, " stands in no edge of a round.");
      }
      if (edges_of_[place] > 0 && has_arcs_[place]) {
        return broken("partition", rank, capital_, " ", rank,
                      " stands in an edge and in arcs of one round.");
      }
    }
    return std::nullopt;
  }

  Found check_sums() const {
    for (std::size_t place = 0; place < num_places_; ++place) {
      if (!has_arcs_[place]) continue;
      const auto rank = static_cast<int>(place);
      if (std::abs(given_[place] - 1.0) > kSumTolerance) {
        return broken("columns", rank, "What ", named(rank), " keeps and gives away sums to ",
                      digits(given_[place]), ", not to 1.");
      }
      if (!(taken_[place] > 0.0)) {
        return broken("rows", rank, capital_, " ", rank, " keeps nothing and hears nothing.");
      }
      if (!directed_ && std::abs(taken_[place] - 1.0) > kSumTolerance) {
        return broken("rows", rank, "The weights of what ", named(rank), " keeps and hears sum to ",
                      digits(taken_[place]), ", not to 1.");
      }
    }
    return std::nullopt;
  }

  const Round& round_;
  int world_size_;
  bool directed_;
  const char* place_name_;
  const char* capital_;
  std::size_t num_places_ = 0;
  std::vector<int> edges_of_;
  std::vector<bool> has_arcs_;
  std::vector<double> given_;
  std::vector<double> taken_;
};

/// Who can learn from whom over many rounds.
class Reach {
 public:
  explicit Reach(int world_size) : parent_(static_cast<std::size_t>(world_size)) {
    for (std::size_t i = 0; i < parent_.size(); ++i) parent_[i] = i;
  }

  void add(const Round& round) {
    const auto size = static_cast<std::size_t>(round.node_size);
    const auto first = [size](int place) { return static_cast<std::size_t>(place) * size; };
    if (size > 1) {
      for (std::size_t rank = 0; rank < parent_.size(); ++rank) join(rank / size * size, rank);
    }
    for (const Edge& edge : round.edges) {
      for (const int place : edge.ranks) join(first(edge.ranks.front()), first(place));
    }
    for (const Arc& arc : round.arcs) {
      if (arc.from != arc.to && arc.weight > 0.0) {
        arcs_.emplace_back(first(arc.from), first(arc.to));
      }
    }
    sort_unique(arcs_);
  }

  /// A rank that never learns from rank 0, or (`backwards`) that rank 0 never learns from; -1:
  /// none.
  int out_of_reach(bool backwards) {
    std::vector<std::vector<std::size_t>> next(parent_.size());
    for (const auto& [from, to] : arcs_) {
      const auto [a, b] = backwards ? std::pair(to, from) : std::pair(from, to);
      next[root(a)].push_back(root(b));
    }
    std::vector<bool> reached(parent_.size());
    std::vector<std::size_t> open = {root(0)};
    reached[root(0)] = true;
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      for (const std::size_t to : next[at]) {
        if (reached[to]) continue;
        reached[to] = true;
        open.push_back(to);
      }
    }
    for (std::size_t rank = 0; rank < parent_.size(); ++rank) {
      if (!reached[root(rank)]) return static_cast<int>(rank);
    }
    return -1;
  }

 private:
  std::size_t root(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) { parent_[root(b)] = root(a); }

  /// Ranks that mix both ways are one set (union-find).
  std::vector<std::size_t> parent_;
  std::vector<std::pair<std::size_t, std::size_t>> arcs_;
};

}  // namespace

std::optional<Violation> find_violation(const Round& round, int world_size, bool directed) {
  return RoundCheck(round, world_size, directed).run();
}

std::optional<Violation> find_violation(const Topology& topology, int world_size,
                                        std::int64_t num_rounds) {
  Reach reach(std::max(world_size, 1));
  num_rounds = std::min(num_rounds, topology.period().value_or(num_rounds));
  for (std::int64_t k = 0; k < num_rounds; ++k) {
    const Round round = topology.round(k);
    if (Found found = find_violation(round, world_size, topology.directed())) {
      found->round = k;
      return found;
    }
    reach.add(round);
  }
  for (const bool backwards : {false, true}) {
    const int rank = reach.out_of_reach(backwards);
    if (rank < 0) continue;
    return Violation{"connected", rank, -1,
                     backwards ? concat("Nothing that rank ", rank, " knows ever reaches rank 0.")
                               : concat("Nothing that rank 0 knows ever reaches rank ", rank, ".")};
  }
  return std::nullopt;
}

}  // namespace gossamer
