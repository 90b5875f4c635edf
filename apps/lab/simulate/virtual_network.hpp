#pragma once
// The network of a simulation: makes the lanes between its virtual ranks. Each lane is a wire
// (virtual_wire.hpp). Where the topology has nodes, each node has a network of its own, and so have
// the ranks that stand at the same place in all nodes.
//
// Protocol: all ranks start the same round of their lanes, one thread calls deliver(), then every
// rank takes what has arrived.
//
// Thread safety: several threads may use the lanes of different ranks at once, as VirtualWire
// allows. One thread calls lanes_of() and deliver().

#include <memory>
#include <vector>

#include "apps/lab/simulate/virtual_wire.hpp"
#include "base/worker_pool.hpp"
#include "core/exchange/lane.hpp"

namespace gossamer::apps {

class VirtualNetwork {
 public:
  /// The parameters mean what they mean in VirtualWire.
  VirtualNetwork(std::shared_ptr<const Topology> topology, int world_size,
                 const Codec* codec = nullptr);
  ~VirtualNetwork();
  VirtualNetwork(const VirtualNetwork&) = delete;
  VirtualNetwork& operator=(const VirtualNetwork&) = delete;

  /// The factory of one rank's lanes, which the network owns. Every rank must make the same lanes
  /// in the same order, one rank after the other.
  LaneFactory& lanes_of(int rank);
  void deliver(WorkerPool& pool);
  /// The push-sum weights of the ranks after the last round; 1 in undirected topologies.
  [[nodiscard]] const std::vector<double>& weights() const;

 private:
  class RankLanes;
  friend class RankLanes;

  [[nodiscard]] int node_size() const;
  /// The lanes inside a rank's node, and the lanes between the ranks at its place in all nodes.
  NodeLanes nodes_of(int rank);

  std::shared_ptr<const Topology> topology_;
  int world_size_;
  const Codec* codec_;
  std::vector<std::unique_ptr<VirtualWire>> wires_;
  std::vector<std::unique_ptr<RankLanes>> ranks_;
  /// The networks of LaneFactory::split_by_node(): one for each node, and one for each place in a
  /// node. Empty before the first rank asks for its networks.
  std::vector<std::unique_ptr<VirtualNetwork>> inside_;
  std::vector<std::unique_ptr<VirtualNetwork>> between_;
  /// The weights of ranks whose lanes follow no topology, or a topology between nodes.
  std::vector<double> weights_;
  /// The peers of every rank in LaneMembers::kTree. Empty until the first rank asks for its peers.
  std::vector<std::vector<int>> tree_peers_;
};

}  // namespace gossamer::apps
