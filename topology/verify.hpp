#pragma once
// The rules that every round keeps, and a search for the first broken one.

#include <cstdint>
#include <optional>
#include <string>

#include "topology/topology.hpp"

namespace gossamer {

/// A broken rule.
struct Violation {
  /// `ranks`, `order`, `partition`, `weight`, `arcs`, `columns`, `rows`, `pairs`, `connected`.
  std::string rule = {};
  /// A rank (of two-level rounds: a node) that breaks it; -1 where no single one does.
  int rank = -1;
  /// The round; -1 where it is not one round's.
  std::int64_t round = -1;
  /// A sentence about it.
  std::string text = {};
};

/// The first rule that a round of `world_size` ranks breaks:
/// - ranks: every rank named is one of 0 .. world_size - 1, and nodes are whole;
/// - order: edges, their ranks, and arcs are ordered as topology.hpp says;
/// - partition: every rank stands in exactly one edge, or in arcs;
/// - weight: weights are numbers from 0 to 1; a rank alone has the weight 1;
/// - arcs: no two arcs have the same ends;
/// - columns: the weights of the values that a rank sends and keeps sum to 1;
/// - pairs (undirected): if a rank hears from another rank, that rank hears from it;
/// - rows: the weights of the values that a rank receives and keeps sum to 1 (directed: to more
///   than 0).
/// Sums may differ from 1 by 1e-9.
std::optional<Violation> find_violation(const Round& round, int world_size, bool directed);

/// Checks rounds 0 .. num_rounds - 1, or one period if that is shorter, and also
/// - connected: over these rounds, what any rank knows can reach every other.
std::optional<Violation> find_violation(const Topology& topology, int world_size,
                                        std::int64_t num_rounds);

}  // namespace gossamer
