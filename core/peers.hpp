#pragma once
// Peers knows this rank's part in every round of a topology, and owns the sub-communicators of
// these rounds.
//
// It builds one sub-communicator for each distinct group of ranks, in the same order on every rank.
// Only groups of three or more ranks that are not the whole world need one: pairs and neighbours
// talk over the world communicator. Rounds of two levels need two sub-communicators for each node
// size: one for the sums inside a node and one for the results. With a single one, a sum would have
// to wait for the result of an earlier bucket.
//
// Peers keeps all rounds of an undirected topology with a period, and the last round of any other
// topology. In directed topologies the weights are those of push-sum (push_sum.hpp), followed from
// round 0 on.
//
// Errors: CommError; std::logic_error for a broken protocol. Not thread safe.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "topology/push_sum.hpp"
#include "topology/rank_round.hpp"

namespace gossamer {

/// The largest groups of three or more whose members all exchange their blocks with one another;
/// larger groups sum them.
struct MostMembers {
  std::int64_t ranks = 0;
  /// In rounds of two levels, where the members are nodes.
  std::int64_t nodes = 0;
};

class Peers {
 public:
  /// Collective: builds the groups of one period, except for directed topologies. Both references
  /// must outlive this object.
  Peers(Communicator& world, const Topology& topology, MostMembers most_members = {});
  /// Makes every round the sum over all ranks: one inbox of weight 1, and keep = 0.
  explicit Peers(Communicator& world);

  /// This rank's part in the k-th round; valid until the next call. Collective if the round has
  /// groups that no earlier round had. This happens only in topologies without a period and in
  /// directed topologies. In directed topologies k must not decrease, or std::logic_error.
  const RankRound& round(std::int64_t k);
  /// The communicator of a round of the kind kGroup.
  [[nodiscard]] Communicator& group(const RankRound& round) const;
  /// The communicator of this rank's node, for sums.
  [[nodiscard]] Communicator& node_sum(int node_size) const;
  /// The communicator of the same ranks, for results.
  [[nodiscard]] Communicator& node_result(int node_size) const;
  [[nodiscard]] Communicator& world() const { return world_; }
  /// The number of sub-communicators that this rank is a member of.
  [[nodiscard]] std::int64_t num_groups() const;

 private:
  struct NodeComms {
    std::unique_ptr<Communicator> sum;
    std::unique_ptr<Communicator> result;
  };

  /// Checks the k-th round, builds its groups, and returns this rank's part.
  RankRound take(std::int64_t k);
  void build_groups(const Round& round);
  [[nodiscard]] std::vector<int> world_ranks_of(const std::vector<int>& places,
                                                int node_size) const;
  [[nodiscard]] bool is_world(const std::vector<int>& ranks) const;

  Communicator& world_;
  /// Null: every round is the one that rounds_ holds.
  const Topology* topology_;
  MostMembers most_members_ = {};
  PushSum push_sum_;
  /// One period, or the last round asked for.
  std::vector<RankRound> rounds_;
  std::int64_t last_round_ = -1;
  /// Maps world ranks to their communicator; nullptr for groups without this rank.
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;
  std::map<int, NodeComms> nodes_;
};

}  // namespace gossamer
