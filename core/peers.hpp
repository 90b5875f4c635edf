#pragma once
// This rank's part in every round of a topology, and the sub-communicators of these rounds.
//
// A sub-communicator is built once for each distinct group of ranks, in the same order on every
// rank. Pairs and neighbours talk over the world communicator, so only groups of three or more
// ranks, short of everybody, need one of their own. Rounds of two levels need two for each node
// size: one for the sums inside a node and one for the results, because a sum must not wait for the
// result of an earlier bucket.
//
// Of a topology with a period all rounds are kept, of others the last one. In directed topologies
// the weights are those of push-sum (push_sum.hpp), followed from round 0 on.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "topology/push_sum.hpp"
#include "topology/rank_round.hpp"

namespace gossamer {

class Peers {
 public:
  /// Collective: builds the groups of one period. Both references must outlive the cache.
  Peers(Communicator& world, const Topology& topology);
  /// Every round is the sum over all ranks: one inbox of weight 1, and keep = 0.
  explicit Peers(Communicator& world);

  /// This rank's part in the k-th round. Collective while it brings groups not seen before (only
  /// topologies without a period do). Where weights follow push-sum, k must not go back.
  const RankRound& round(std::int64_t k);
  /// The communicator of a part of the kind kGroup.
  [[nodiscard]] Communicator& group(const RankRound& round) const;
  /// The ranks of this rank's node, for sums.
  [[nodiscard]] Communicator& node_sum(int node_size) const;
  /// The same ranks, for results.
  [[nodiscard]] Communicator& node_result(int node_size) const;
  [[nodiscard]] Communicator& world() const { return world_; }
  /// Sub-communicators this rank has a part in.
  [[nodiscard]] std::int64_t num_groups() const;

 private:
  struct NodeComms {
    std::unique_ptr<Communicator> sum;
    std::unique_ptr<Communicator> result;
  };

  /// Checks the k-th round and builds what it needs.
  RankRound take(std::int64_t k);
  void build_groups(const Round& round);
  [[nodiscard]] std::vector<int> world_ranks_of(const std::vector<int>& places,
                                                int node_size) const;
  [[nodiscard]] bool is_world(const std::vector<int>& ranks) const;

  Communicator& world_;
  /// Null: the one round that rounds_ holds.
  const Topology* topology_;
  PushSum push_sum_;
  /// One period, or the last round asked for.
  std::vector<RankRound> rounds_;
  std::int64_t last_round_ = -1;
  /// nullptr for groups of other ranks.
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;
  std::map<int, NodeComms> nodes_;
};

}  // namespace gossamer
