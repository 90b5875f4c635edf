#pragma once
// The sub-communicators of a topology, built once per distinct group of ranks, in the same order on
// every rank. Pairs talk over the world communicator, so only groups of three or more, short of
// everybody, need one of their own.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "gossamer/comm/communicator.hpp"
#include "gossamer/topology/topology.hpp"

namespace gossamer {

class GroupCache {
 public:
  /// Collective: builds the groups of one period. Both references must outlive the cache.
  GroupCache(Communicator& world, const Topology& topology);

  /// The k-th round. Collective while it brings groups not seen before (only topologies without a
  /// period do).
  const Round& round(std::int64_t k);
  /// The communicator of an edge of more than two ranks that holds this rank.
  [[nodiscard]] Communicator& group(const Edge& edge) const;
  [[nodiscard]] Communicator& world() const { return world_; }
  /// Sub-communicators this rank has a part in.
  [[nodiscard]] std::int64_t num_groups() const;

 private:
  void build_groups(const Round& round);

  Communicator& world_;
  const Topology& topology_;
  /// One period, or the last round asked for.
  std::vector<Round> rounds_;
  std::int64_t last_round_ = -1;
  /// nullptr for groups of other ranks.
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;
};

}  // namespace gossamer
