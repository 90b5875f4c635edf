#pragma once
// Peers knows this rank's part in every round of a topology. SubCommunicators finds the
// sub-communicators of these rounds among the parts of the world communicator, so that models and
// topologies which come and go build no group twice.
//
// There is one sub-communicator for each distinct group of ranks; every rank builds them in the
// same order. Only groups of three or more ranks that are not the whole world need one: pairs and
// neighbours talk over the world communicator. Rounds of two levels need two sub-communicators for
// each node size: one for the sums inside a node and one for the results. With a single one, a sum
// would have to wait for the result of an earlier bucket.
//
// Peers keeps all rounds of an undirected topology with a period, and the last round of any other
// topology. In directed topologies Peers computes the weights of push-sum (push_sum.hpp), from
// round 0 on, or from the weights that the ranks have saved.
//
// Errors: CommError; CheckpointError for saved weights that no run can have; std::logic_error for a
// broken protocol. Not thread safe.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "topology/push_sum.hpp"
#include "topology/rank_round.hpp"

namespace gossamer {

/// The largest groups of three or more whose members all exchange their blocks with one another;
/// larger groups sum them.
struct MostMembers {
  std::int64_t ranks = 0;
  /// The needs of rounds of two levels, where the members are nodes.
  std::int64_t nodes = 0;
};

/// The numbers of blocks that a round needs at the same time.
struct RoundNeeds {
  std::int64_t inboxes = 0;
  /// Sent or received by operations.
  std::int64_t carried = 0;

  [[nodiscard]] RoundNeeds operator+(const RoundNeeds& other) const {
    return {inboxes + other.inboxes, carried + other.carried};
  }
  void raise_to(const RoundNeeds& other);
};

/// The most that any round needs.
struct MostNeeds {
  /// The needs of sums and results inside groups and nodes, which no codec encodes.
  RoundNeeds sums = {};
  /// The needs of blocks that go to single ranks or nodes.
  RoundNeeds single = {};
  /// The needs of both kinds.
  RoundNeeds all = {};
};

class SubCommunicators {
 public:
  /// `world` must outlive this object.
  explicit SubCommunicators(Communicator& world) : world_(world) {}

  /// Collective: builds the groups of a round that no earlier round had.
  void build(const Round& round);
  /// The communicator of a round of the kind kGroup. Throws std::logic_error if this rank is not in
  /// the group.
  [[nodiscard]] Communicator& group(const RankRound& round) const;
  /// The communicator of this rank's node, for sums.
  [[nodiscard]] Communicator& node_sum(int node_size) const;
  /// The communicator of the same ranks, for results.
  [[nodiscard]] Communicator& node_result(int node_size) const;
  [[nodiscard]] Communicator& world() const { return world_; }

 private:
  [[nodiscard]] bool is_world(const std::vector<int>& ranks) const;
  /// The part of this rank's node.
  [[nodiscard]] Communicator& node(std::string_view use, int node_size) const;

  Communicator& world_;
};

/// The ranks of every node.
std::vector<std::vector<int>> ranks_of_nodes(int world_size, int node_size);

class Peers {
 public:
  /// Collective: builds the groups of one period, except for directed topologies. Both references
  /// must outlive this object.
  Peers(SubCommunicators& parts, const Topology& topology, MostMembers most_members = {});
  /// Makes every round the sum over all ranks: one inbox of weight 1, and keep = 0.
  explicit Peers(SubCommunicators& parts);

  /// This rank's part in the k-th round; valid until the next call. Collective if the round has
  /// groups that no earlier round had. This happens only in topologies without a period and in
  /// directed topologies. In directed topologies k must not decrease without resume(), or
  /// std::logic_error.
  const RankRound& round(std::int64_t k);
  /// The most that a round of the first period needs; without a period, the first round.
  [[nodiscard]] const MostNeeds& most_needs();
  /// This rank's push-sum weight before the round that round() was last asked for; 1 before the
  /// first, and in topologies that are not directed.
  [[nodiscard]] double weight() const { return weight_; }
  /// Continues a saved run: `weight` is weight() at saving. The next round() must be for the same
  /// round as the last call before saving. That call is collective, because the ranks send each
  /// other their weights, and it uses no earlier round. Does nothing in topologies that are not
  /// directed.
  void resume(double weight);
  [[nodiscard]] const SubCommunicators& parts() const { return parts_; }
  [[nodiscard]] Communicator& world() const { return parts_.world(); }

 private:
  /// The round with arcs in place of the groups that exchange their blocks.
  [[nodiscard]] Round exchanged(Round round) const;
  /// Checks the k-th round, builds its groups, and returns this rank's part.
  RankRound take(std::int64_t k);
  /// Takes the weights of push-sum from the last round to before round k.
  void advance_weights_to(std::int64_t k);
  /// The weights of all ranks, from their resume().
  std::vector<double> gather_weights(double own) const;

  SubCommunicators& parts_;
  /// Null: every round is the one that rounds_ holds.
  const Topology* topology_;
  MostMembers most_members_ = {};
  PushSum push_sum_;
  /// The rounds of one period, or the last round asked for.
  std::vector<RankRound> rounds_;
  std::int64_t last_round_ = -1;
  /// This rank's weight by resume(), until the next round().
  std::optional<double> resumed_weight_;
  /// Null: not known yet.
  std::optional<MostNeeds> most_needs_;
  double weight_ = 1.0;
};

}  // namespace gossamer
