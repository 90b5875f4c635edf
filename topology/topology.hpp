#pragma once
// A topology says which ranks mix with which: for every k = 0, 1, 2, ... it gives a Round. The k-th
// exchange of a run uses round(k) on every rank, so a topology must be a pure function of its
// world, its options and k. Topologies are immutable after construction and safe to read from any
// thread.
//
// A round is a mixing matrix W, x <- W x, given by edges, arcs or both:
// - edges: pairs and groups that average among each other, the fast special case;
// - arcs: one weight per message, for ranks that hear from several peers or only in one direction.
// A rank stands in exactly one edge, or in arcs. Columns of W sum to one, so that the sum over all
// ranks is kept. Rows sum to one too, except in directed topologies, where push-sum corrects the
// averages (push_sum.hpp).
//
// A new topology is one file with one factory and one row in registry.cpp.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "topology/members.hpp"

namespace gossamer {

/// Ranks that mix with one another. Each of the n ranks keeps `weight` of its own value and takes
/// (1 - weight) / (n - 1) of every other member's value. One rank alone sits the round out; its
/// weight is 1.
struct Edge {
  /// Ascending, distinct.
  Members ranks;
  double weight = 1.0;
  friend bool operator==(const Edge&, const Edge&) = default;

  /// The weight of every other member's value; 0 for one rank alone.
  [[nodiscard]] double share() const {
    return ranks.size() < 2 ? 0.0 : (1.0 - weight) / static_cast<double>(ranks.size() - 1);
  }
};

/// One message: rank `to` takes `weight` times the value of rank `from`. An arc with from == to is
/// the part of its own value that a rank keeps.
struct Arc {
  int from = 0;
  int to = 0;
  double weight = 0.0;
  friend bool operator==(const Arc&, const Arc&) = default;
};

struct Round {
  /// Ordered by their smallest rank.
  std::vector<Edge> edges = {};
  /// Ordered by `to`, then `from`. A rank with arcs also has an arc to itself, unless it keeps
  /// nothing of its own value.
  std::vector<Arc> arcs = {};
  /// More than 1 means two levels: edges and arcs then name nodes of `node_size` consecutive ranks.
  /// The ranks of a node average first, the averages of the nodes are mixed, and every rank of a
  /// node takes the result. W = W_nodes x (1/node_size) 1 1^T (Kronecker product).
  int node_size = 1;
  friend bool operator==(const Round&, const Round&) = default;

  /// The edge that holds `rank` (in rounds of two levels: a node). Throws std::logic_error when no
  /// edge does.
  [[nodiscard]] const Edge& edge_of(int rank) const;
};

/// Adds arcs that do the same as `edge`: one from every member to every member.
void append_arcs(const Edge& edge, std::vector<Arc>& arcs);

/// The edge of an ordinary average: weight 1/n.
Edge averaging_edge(Members ranks);

/// Makes a round of `edges` and `arcs`: adds an edge of one rank for every rank that they leave
/// out, and orders both. Checks nothing.
Round fill_round(std::vector<Edge> edges, int world_size, std::vector<Arc> arcs = {});

/// fill_round(), then a check by the rules of directed topologies. Throws std::logic_error.
Round complete_round(std::vector<Edge> edges, int world_size, std::vector<Arc> arcs = {});

/// A round of two levels (Round::node_size); `nodes` is the round among the nodes.
Round two_level_round(Round nodes, int node_size);

/// Returns the round with arcs in place of edges of 3 to `most` ranks. Every member of such a group
/// then sends its values to every other member, and no member needs the group's sum.
Round with_arcs_for_groups(Round round, std::int64_t most);

/// A round of one level with the same mixing matrix, of edges alone or of arcs alone.
Round flat_round(const Round& round, int world_size);

class Topology {
 public:
  virtual ~Topology() = default;

  /// The registry name, as `one-peer-exp`.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Rounds repeat after this many; nothing for topologies that never repeat. Periods longer than
  /// kManyRounds are given as kManyRounds.
  [[nodiscard]] virtual std::optional<std::int64_t> period() const = 0;
  /// The k-th round, k >= 0.
  [[nodiscard]] virtual Round round(std::int64_t k) const = 0;
  /// The rounds, ascending, at which a topology made of phases passes on to the next phase.
  [[nodiscard]] virtual std::vector<std::int64_t> turning_points() const { return {}; }
  /// Whether messages may go in one direction only. Then columns of W sum to one, rows need not.
  [[nodiscard]] virtual bool directed() const { return false; }
};

/// A topology given by the rounds of one period. Most factories return one.
std::unique_ptr<Topology> make_periodic(std::string name, std::vector<Round> rounds,
                                        bool directed = false);

/// More rounds than any run makes.
inline constexpr std::int64_t kManyRounds = std::int64_t{1} << 40;

/// rounds * factor, or kManyRounds if that is less. Neither may be negative.
std::int64_t rounds_times(std::int64_t rounds, std::int64_t factor);

/// Throws std::logic_error for k < 0.
void require_round_number(std::int64_t k);

/// Throws std::logic_error with the text of find_violation() (verify.hpp).
void check_round(const Round& round, int world_size, bool directed = false);

}  // namespace gossamer
