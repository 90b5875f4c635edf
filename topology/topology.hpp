#pragma once
// A topology says who mixes with whom: for every k = 0, 1, 2, ... a Round. The k-th exchange of a
// run uses round(k) on every rank, so a topology must be a pure function of its world, its options
// and k. Topologies are immutable after construction and safe to read from any thread.
//
// A round is a mixing matrix W, x <- W x, written down in one or both of two ways:
// - edges: pairs and groups that average among each other, the fast special case;
// - arcs: one weight per message, for ranks that hear from several peers or only in one direction.
// A rank stands in exactly one edge, or in arcs. Columns of W sum to one: nothing gets lost on the
// way. Rows do too, except in directed topologies, whose averages push_sum.hpp sets right.
//
// A new topology is one file with one factory and one row in registry.cpp.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace gossamer {

/// Ranks that mix with one another. A rank keeps `weight` of its own value and takes
/// (1 - weight) / (n - 1) of each other member's, n = ranks.size(). One rank alone sits the round
/// out; its weight is 1.
struct Edge {
  /// Ascending, distinct.
  std::vector<int> ranks;
  double weight = 1.0;
  friend bool operator==(const Edge&, const Edge&) = default;

  /// What a member takes of each other member's value; 0 for one rank alone.
  [[nodiscard]] double share() const {
    return ranks.size() < 2 ? 0.0 : (1.0 - weight) / static_cast<double>(ranks.size() - 1);
  }
};

/// One message: `to` takes `weight` times the value of `from`. With from == to: what a rank keeps
/// of its own.
struct Arc {
  int from = 0;
  int to = 0;
  double weight = 0.0;
  friend bool operator==(const Arc&, const Arc&) = default;
};

struct Round {
  /// Ordered by their smallest rank.
  std::vector<Edge> edges = {};
  /// Ordered by `to`, then `from`. A rank with arcs has one to itself, unless it keeps nothing.
  std::vector<Arc> arcs = {};
  /// More than 1: two levels. Edges and arcs name nodes of this many consecutive ranks; the ranks
  /// of a node average first, the node's average is what is mixed, and every rank of the node takes
  /// the result. W = W_nodes x (1/node_size) 1 1^T (Kronecker product).
  int node_size = 1;
  friend bool operator==(const Round&, const Round&) = default;

  /// The edge that holds `rank` (of two levels: `node`). Throws std::logic_error when there is
  /// none.
  [[nodiscard]] const Edge& edge_of(int rank) const;
};

/// Adds what an edge does as arcs: one from every member to every member.
void append_arcs(const Edge& edge, std::vector<Arc>& arcs);

/// The edge of an ordinary average: weight 1/n.
Edge averaging_edge(std::vector<int> ranks);

/// Adds an edge of one rank for every rank that `edges` and `arcs` leave out, and orders both. What
/// is wrong with them stays wrong.
Round fill_round(std::vector<Edge> edges, int world_size, std::vector<Arc> arcs = {});

/// The same, checked by the rules of directed topologies. Throws std::logic_error.
Round complete_round(std::vector<Edge> edges, int world_size, std::vector<Arc> arcs = {});

/// A round in which the ranks of every node of `node_size` average first, and `nodes` says how
/// nodes mix; see Round::node_size.
Round two_level_round(Round nodes, int node_size);

/// The same mixing matrix in one level, and in edges alone or arcs alone.
Round flat_round(const Round& round, int world_size);

class Topology {
 public:
  virtual ~Topology() = default;

  /// The registry name, as `one-peer-exp`.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Rounds repeat after this many; nothing for topologies that never repeat.
  [[nodiscard]] virtual std::optional<std::int64_t> period() const = 0;
  /// The k-th round, k >= 0.
  [[nodiscard]] virtual Round round(std::int64_t k) const = 0;
  /// Whether messages may go in one direction only. Then columns of W sum to one, rows need not.
  [[nodiscard]] virtual bool directed() const { return false; }
};

/// A topology given by the rounds of one period; what most factories return.
std::unique_ptr<Topology> make_periodic(std::string name, std::vector<Round> rounds,
                                        bool directed = false);

/// Throws std::logic_error for k < 0.
void require_round_number(std::int64_t k);

/// Throws std::logic_error with what find_violation() (verify.hpp) has found.
void check_round(const Round& round, int world_size, bool directed = false);

}  // namespace gossamer
