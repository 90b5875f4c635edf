#pragma once
// A topology says who mixes with whom: for every k = 0, 1, 2, ... a Round, which partitions all
// ranks into edges. The k-th exchange of a run uses round(k) on every rank, so a topology must be a
// pure function of its world, its options and k. Topologies are immutable after construction and
// safe to read from any thread.
//
// A new topology is one file with one factory and one row in registry.cpp.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gossamer/core/base/types.hpp"

namespace gossamer {

/// Ranks that mix with one another. A rank keeps `weight` of its own value and takes
/// (1 - weight) / (n - 1) of each other member's, n = ranks.size(). One rank alone sits the round
/// out; its weight is 1.
struct Edge {
  /// Ascending, distinct.
  std::vector<int> ranks;
  double weight = 1.0;
  friend bool operator==(const Edge&, const Edge&) = default;
};

/// Every rank stands in exactly one edge.
struct Round {
  /// Ordered by their smallest rank.
  std::vector<Edge> edges;
  friend bool operator==(const Round&, const Round&) = default;

  /// The edge that holds `rank`. Throws std::logic_error when there is none.
  [[nodiscard]] const Edge& edge_of(int rank) const;
};

/// The edge of an ordinary average: weight 1/n.
Edge averaging_edge(std::vector<int> ranks);

/// Adds an edge of one rank for every rank that `edges` leaves out, and orders the edges.
Round complete_round(std::vector<Edge> edges, int world_size);

class Topology {
 public:
  virtual ~Topology() = default;

  /// The registry name, as `one-peer-exp`.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Rounds repeat after this many; nothing for topologies that never repeat.
  [[nodiscard]] virtual std::optional<std::int64_t> period() const = 0;
  /// The k-th round, k >= 0.
  [[nodiscard]] virtual Round round(std::int64_t k) const = 0;
};

/// A topology given by the rounds of one period; what most factories return.
std::unique_ptr<Topology> make_periodic(std::string name, std::vector<Round> rounds);

/// Throws std::logic_error unless every rank 0..world_size-1 stands in exactly one edge and weights
/// are in [0, 1].
void check_round(const Round& round, int world_size);

}  // namespace gossamer
