#pragma once
// The LaneFactory whose lanes send over a Communicator. Each kind of lane is a file. Plain blocks:
// exchanges and sums (plain_lane.hpp), exchanges through shared memory (slot_lane.hpp), messages
// along a tree (tree_lane.hpp), shards (shard_lane.hpp). Encoded blocks: exchanges (coded_lane.hpp,
// with grid_lane.hpp around it), sums (coded_sum_lane.hpp). The header lane.hpp has protocol,
// errors and thread safety.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/exchange/lane.hpp"
#include "core/exchange/lane_setup.hpp"
#include "core/exchange/peers.hpp"

namespace gossamer {

class HostMemory;
struct HostSharing;

class PeerLanes : public LaneFactory {
 public:
  /// All that `setup` refers to must outlive the factory.
  explicit PeerLanes(LaneSetup setup);
  ~PeerLanes() override;
  PeerLanes(const PeerLanes&) = delete;
  PeerLanes& operator=(const PeerLanes&) = delete;

  AsyncExchange& make_async_exchange(AsyncExchange::Config config) override;
  NodeLanes split_by_node() override;
  [[nodiscard]] int node_size() const override;
  [[nodiscard]] int num_ranks() const override { return setup_.communicator.size(); }
  [[nodiscard]] std::int64_t num_tree_peers() const override;

  /// Makes the stream wait for all lanes, also those between and inside nodes. Closes the
  /// asynchronous exchange, which is collective.
  void drain();
  /// Drops the blocks that have arrived, in all lanes with LaneSpec::forgets. Call it after
  /// drain().
  void forget();
  /// Shows the visitor the state of all lanes and of the exchange, after drain(). `names_of`
  /// names the parameters of a bucket.
  void visit(StateVisitor& visitor,
             const std::function<std::vector<std::string>(std::int64_t bucket)>& names_of);
  /// Drops all lanes and the exchange. The algorithm that uses them must be gone.
  void drop_lanes();

  /// Lanes made from now on follow another topology, from its round 0 on. Call it after
  /// drop_lanes(). Sub-communicators stay, for topologies with the same groups.
  void set_topology(std::shared_ptr<const Topology> topology);
  /// This rank's weight in the mean of all ranks' models. With an asynchronous exchange the weight
  /// is the rank's mass, after drain(). Otherwise it is the push-sum weight of the rank's
  /// parameters, as long as the last round is not mixed in; it is 1 if the topology is not
  /// directed. The weights sum to the number of ranks.
  [[nodiscard]] double model_weight() const;
  /// Continues a saved run: `weight` is model_weight() at saving. The lanes then send the round
  /// that was under way at saving before any other round.
  void resume(double weight);
  /// Collective, after the last make_lane() and before the first round: makes the memory in which
  /// the ranks of a host read each other's blocks.
  void share_memory();
  /// How the ranks of a host read each other's blocks, by the last share_memory().
  [[nodiscard]] HostSharing host_sharing() const;

 protected:
  std::unique_ptr<Lane> make(const LaneSpec& spec) override;

 private:
  /// The Peers of a kind of rounds; made with the first lane that needs them.
  Peers& peers_of(LaneResult result);
  std::unique_ptr<Lane> make_coded(const LaneSpec& spec);
  /// The memory for the slots of a lane of plain blocks; null: it sends messages.
  std::shared_ptr<HostMemory> memory_for(const LaneSpec& spec);

  /// The lanes of split_by_node(), over parts of the communicator.
  struct Nodes;

  LaneSetup setup_;
  SubCommunicators parts_;
  /// The shared memory of the last lanes; null: no lane has slots.
  std::shared_ptr<HostMemory> memory_;
  std::unique_ptr<AsyncExchange> async_exchange_;
  std::unique_ptr<const Topology> complete_;
  std::map<LaneResult, std::unique_ptr<Peers>> peers_;
  /// The lanes of nodes, by the number of ranks in a node. They stay, so that topologies may take
  /// turns.
  std::map<int, std::shared_ptr<Nodes>> all_nodes_;
  /// The nodes of the topology; null until split_by_node().
  std::shared_ptr<Nodes> nodes_;
};

}  // namespace gossamer
