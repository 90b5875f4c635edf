#pragma once
// Describes a round as work of links: its transfers, the ranks that must be there before each
// transfer begins, and the share of the bucket that each link carries.
//
// Links are queues. Every rank has one link out to the ranks of its node and one in from them.
// Every node has one link out to the other nodes and one in from them. A transfer between nodes
// does not use the ranks' own links. Where the cluster has regions, every node has one more link
// out to every other region and one in from it. A transfer between regions uses the nodes' links
// too, and takes its latency from the path between the regions. Where receivers say that they are
// ready (Links::receivers_say_ready()), a transfer between nodes begins with one more latency. A
// ring pays this latency once, because its members expect the later pieces in time.
//
// The kinds of transfers:
// - Pair: both directions at once, the whole bucket in each.
// - Group of n > 2: a ring in the order of ranks. Each member sends 2 (n-1) / n of the bucket to
//   the next member, in 2 (n-1) steps that follow each other; each step adds one latency (Patarasuk
//   and Yuan, 2009). Where several members are on one node, only the last of them sends to another
//   node.
// - Message to a neighbour: the whole bucket in one direction.
// - Two levels: a group in each node, then the round's exchange between the nodes' first ranks,
//   then the result from the first rank to the others of its node.

#include <vector>

#include "apps/lab/plan/links.hpp"
#include "base/types.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

/// The bytes that a transfer puts on one link.
struct Flow {
  /// Index of the link; see LinkTable.
  int link = 0;
  /// Bytes, as a multiple of the bucket's bytes.
  double share = 0.0;
};

struct Transfer {
  /// The ranks that must have started their exchange before the transfer begins.
  std::vector<int> members = {};
  /// The number of transfers of this round that must be over before this transfer begins.
  int num_before = 0;
  /// The indices of the transfers that wait for this transfer.
  std::vector<int> next = {};
  /// The ranks whose exchange ends only after this transfer.
  std::vector<int> waiters = {};
  std::vector<Flow> flows = {};
  double latency_s = 0.0;
  /// Seconds until the sender knows that the receivers are ready.
  double ready_s = 0.0;
  /// True: the links are busy during the latency too, because the steps of a ring wait for each
  /// other and nothing else of the communicator runs meanwhile.
  bool holds_links = false;
  /// True: the transfer is a message between two ranks, or between the first ranks of two nodes. A
  /// codec may encode it.
  bool is_message = false;
};

/// The transfers of one round.
struct Traffic {
  std::vector<Transfer> transfers = {};
  /// The indices of the transfers that each rank is a member of.
  std::vector<std::vector<int>> starts = {};
  /// The number of transfers that each rank's exchange waits for.
  std::vector<int> num_waits = {};
  /// The number of steps after which the ranks wait for the exchange; 0: they wait in the step that
  /// starts it.
  std::int64_t late = 1;
};

/// The links of a world, numbered from 0: the links out of and into ranks, then nodes, then
/// regions.
class LinkTable {
 public:
  /// Throws ConfigError when `links` lacks a speed that this world needs.
  LinkTable(const World& world, const Links& links);

  [[nodiscard]] int size() const { return first_across() + 2 * num_nodes_ * regions_.count(); }
  [[nodiscard]] LinkSpeed speed(int link) const;
  [[nodiscard]] bool same_node(int a, int b) const;
  [[nodiscard]] int out_of_rank(int rank) const { return rank; }
  [[nodiscard]] int into_rank(int rank) const { return world_.size + rank; }
  /// The link out of the node on which `rank` is.
  [[nodiscard]] int out_of_node(int rank) const;
  [[nodiscard]] int into_node(int rank) const { return out_of_node(rank) + num_nodes_; }
  /// True: two ranks are in different regions. The two functions below then give the links of the
  /// path between the regions.
  [[nodiscard]] bool crosses(int from, int to) const;
  [[nodiscard]] int out_of_region(int from, int to) const;
  [[nodiscard]] int into_region(int from, int to) const;
  /// True for the links that out_of_rank() and out_of_node() return.
  [[nodiscard]] bool leaves_rank(int link) const;
  /// True for the links that out_of_region() returns.
  [[nodiscard]] bool leaves_region(int link) const;
  /// The number of ranks that pay for what a link carries: one rank, or all ranks of a node.
  [[nodiscard]] int num_payers(int link) const { return is_within(link) ? 1 : world_.node_size; }
  /// The account on which the bytes of `link` are booked. It is the outgoing link of the rank, or
  /// of the node, to which `link` belongs. Incoming bytes and bytes between regions are booked
  /// there too.
  [[nodiscard]] int account(int link) const;
  /// Seconds of latency of one message.
  [[nodiscard]] double latency_s(int from, int to) const;
  /// Seconds until the sender `from` knows that the receiver `to` is ready; 0 where receivers do
  /// not say so.
  [[nodiscard]] double ready_s(int from, int to) const;
  [[nodiscard]] const World& world() const { return world_; }

 private:
  [[nodiscard]] bool is_within(int link) const { return link < 2 * world_.size; }
  /// The first of the links between regions: [direction][node][other region].
  [[nodiscard]] int first_across() const { return 2 * world_.size + 2 * num_nodes_; }
  [[nodiscard]] int region_of(int rank) const;
  [[nodiscard]] const RegionPath& path(int from, int to) const;

  World world_;
  int num_nodes_ = 1;
  LinkSpeed within_ = {};
  LinkSpeed between_ = {};
  bool receivers_say_ready_ = false;
  Regions regions_ = {};
  std::vector<int> region_of_node_ = {};
};

/// The transfers of a round, which must be valid (verify.hpp).
Traffic traffic_of(const Round& round, const LinkTable& links);
/// The traffic of one group of all ranks.
Traffic all_reduce_traffic(const LinkTable& links);
/// Multiplies the bytes of messages and the bytes of other transfers.
void scale(Traffic& traffic, double messages, double others);
/// The traffic of exchanges that all ranks start together.
Traffic together(const std::vector<Traffic>& parts, int world_size);

}  // namespace gossamer::apps
