#pragma once
// A round as the work of links: which transfers it is made of, who must be there before each one
// begins, and which links carry how much of the bucket.
//
// Links are queues: every rank has one out and one in for the ranks of its node, every node has
// one out and one in for the other nodes. A transfer between nodes does not use the ranks' own
// links.
// - Pair: both directions at once, the whole bucket in each.
// - Group of n > 2: a ring in the order of ranks. Each member sends 2 (n-1) / n of the bucket to
//   the next one, in 2 (n-1) steps that follow each other, so a latency for each (Patarasuk and
//   Yuan, 2009). Within one node's stretch of the ring only one hop leaves the node.
// - Message to a neighbour: the whole bucket in one direction.
// - Two levels: a group in each node, then what the round says between the nodes' first ranks,
//   then the result from the first rank to the others of its node.

#include <vector>

#include "apps/lab/plan/links.hpp"
#include "base/types.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

/// What a transfer puts on one link.
struct Flow {
  /// Index of the link; see LinkTable.
  int link = 0;
  /// Bytes, as a multiple of the bucket's.
  double share = 0.0;
};

struct Transfer {
  /// Begins when all of these have started their exchange, and
  std::vector<int> members = {};
  /// as many transfers of this round are over.
  int num_before = 0;
  /// Transfers that wait for this one.
  std::vector<int> next = {};
  /// Ranks whose exchange is over only with this transfer.
  std::vector<int> waiters = {};
  std::vector<Flow> flows = {};
  double latency_s = 0.0;
  /// Its links are busy during the latency too: the steps of a ring wait for each other, and
  /// nothing else of its communicator runs meanwhile.
  bool holds_links = false;
};

/// The transfers of one round.
struct Traffic {
  std::vector<Transfer> transfers = {};
  /// Of each rank, the transfers that it is a member of.
  std::vector<std::vector<int>> starts = {};
  /// Of each rank, how many transfers its exchange waits for.
  std::vector<int> num_waits = {};
};

/// The links of a world.
class LinkTable {
 public:
  /// Throws ConfigError when a speed is missing that this world needs.
  LinkTable(const World& world, const Links& links);

  [[nodiscard]] int size() const { return 2 * world_.size + 2 * num_nodes_; }
  [[nodiscard]] const LinkSpeed& speed(int link) const;
  [[nodiscard]] bool same_node(int a, int b) const;
  [[nodiscard]] int out_of_rank(int rank) const { return rank; }
  [[nodiscard]] int into_rank(int rank) const { return world_.size + rank; }
  /// Of the node that a rank is on.
  [[nodiscard]] int out_of_node(int rank) const;
  [[nodiscard]] int into_node(int rank) const { return out_of_node(rank) + num_nodes_; }
  /// Ranks that pay for what a link carries: one, or a node's.
  [[nodiscard]] int num_payers(int link) const { return is_within(link) ? 1 : world_.node_size; }
  /// The link whose payers a rank is one of, for each of its two kinds of links: its own, its
  /// node's. Incoming bytes are booked there too.
  [[nodiscard]] int account(int link) const;
  /// Of one message.
  [[nodiscard]] double latency_s(int from, int to) const;
  [[nodiscard]] const World& world() const { return world_; }

 private:
  [[nodiscard]] bool is_within(int link) const { return link < 2 * world_.size; }

  World world_;
  int num_nodes_ = 1;
  LinkSpeed within_ = {};
  LinkSpeed between_ = {};
};

/// The transfers of a round that is right (verify.hpp).
Traffic traffic_of(const Round& round, const LinkTable& links);
/// One group of all ranks.
Traffic all_reduce_traffic(const LinkTable& links);

}  // namespace gossamer::apps
