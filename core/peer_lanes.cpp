#include "core/peer_lanes.hpp"

#include <stdexcept>
#include <utility>

#include "comm/communicator.hpp"
#include "core/coded_sum_lane.hpp"
#include "core/grid_lane.hpp"
#include "core/peer_lane.hpp"
#include "core/shard_lanes.hpp"
#include "core/tree_lane.hpp"
#include "optim/codec.hpp"
#include "topology/nodes.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

/// The largest groups whose members exchange encoded blocks.
MostMembers most_members(const PeerLanes::Setup& setup) {
  if (setup.codec == nullptr) return {};
  const std::int64_t most = most_coded_members(*setup.codec);
  return {.ranks = most, .nodes = setup.codec->needs_grid() ? 0 : most};
}

}  // namespace

Peers& PeerLanes::peers_of(LaneRounds rounds) {
  std::unique_ptr<Peers>& peers = peers_[rounds];
  if (peers) return *peers;
  const int size = num_ranks();
  switch (rounds) {
    case LaneRounds::kTopology:
    case LaneRounds::kTopologyUnsummed:
      if (!setup_.topology) throw std::logic_error("PeerLanes: a lane needs a topology");
      peers = std::make_unique<Peers>(
          parts_, *setup_.topology,
          rounds == LaneRounds::kTopology ? most_members(setup_) : MostMembers{.ranks = size});
      break;
    case LaneRounds::kMean:
      complete_ = make_topology("complete", {.size = size, .node_size = size});
      peers = std::make_unique<Peers>(parts_, *complete_);
      break;
    case LaneRounds::kSum:
      peers = std::make_unique<Peers>(parts_);
      break;
    case LaneRounds::kTree:
    case LaneRounds::kGather:
    case LaneRounds::kShardSum:
      throw std::logic_error("PeerLanes: such a lane has no rounds");
  }
  return *peers;
}

std::int64_t PeerLanes::num_tree_peers() const {
  if (!setup_.topology) throw std::logic_error("PeerLanes: a tree is needed");
  return std::ssize(own_tree_peers(setup_));
}

void PeerLanes::set_topology(std::shared_ptr<const Topology> topology) {
  peers_.erase(LaneRounds::kTopology);
  peers_.erase(LaneRounds::kTopologyUnsummed);
  setup_.topology = std::move(topology);
  nodes_.reset();
}

struct PeerLanes::Nodes {
  std::unique_ptr<Communicator> inside_ranks;
  std::unique_ptr<Communicator> between_ranks;
  PeerLanes inside;
  PeerLanes between;
};

int PeerLanes::node_size() const {
  return setup_.topology ? setup_.topology->round(0).node_size : 1;
}

NodeLanes PeerLanes::split_by_node() {
  const int rank = setup_.communicator.rank();
  const int size = node_size();
  if (!nodes_) {
    nodes_ = all_nodes_[size];
    if (!nodes_) {
      auto inside = setup_.communicator.split(rank / size);
      auto between = setup_.communicator.split(rank % size);
      const auto setup_on = [this](Communicator& ranks) {
        return Setup{.stream = setup_.stream,
                     .communicator = ranks,
                     .topology = nullptr,
                     .shares_memory = false,
                     .metrics = setup_.metrics,
                     .simd = setup_.simd,
                     .timeline = setup_.timeline};
      };
      const Setup of_node = setup_on(*inside);
      const Setup of_peers = setup_on(*between);
      nodes_.reset(new Nodes{std::move(inside), std::move(between), PeerLanes(of_node),
                             PeerLanes(of_peers)});
      all_nodes_[size] = nodes_;
    }
    nodes_->between.set_topology(between_nodes(setup_.topology));
  }
  return {.inside = nodes_->inside, .between = nodes_->between, .place = rank % size};
}

double PeerLanes::push_sum_weight() const {
  if (nodes_) return nodes_->between.push_sum_weight();
  const auto peers = peers_.find(LaneRounds::kTopology);
  return peers == peers_.end() ? 1.0 : peers->second->weight();
}

std::unique_ptr<Lane> PeerLanes::make_lane(const LaneSpec& spec) {
  if (spec.rounds == LaneRounds::kGather || spec.rounds == LaneRounds::kShardSum) {
    return make_shard_lane(setup_, spec);
  }
  if (spec.rounds == LaneRounds::kTree) return make_tree_lane(setup_, spec);
  const bool sums = spec.rounds == LaneRounds::kSum && spec.num_coded > 0;
  if (sums && setup_.codec != nullptr && num_ranks() > 1) {
    Communicator& world = setup_.communicator;
    if (!coded_results_) coded_results_ = world.split(0);
    return make_coded_sum_lane(setup_, {.shards = world, .results = *coded_results_}, spec);
  }
  return GridLane::around(make_peer_lane(setup_, peers_of(spec.rounds), spec), spec, *this,
                          setup_.stream, setup_.metrics.num_wide_differences);
}

std::unique_ptr<Mailbox> PeerLanes::make_mailbox(Mailbox::Config config) {
  if (!setup_.topology) throw std::logic_error("PeerLanes: a mailbox needs a topology");
  return std::make_unique<Mailbox>(setup_.communicator, setup_.stream, setup_.metrics,
                                   *setup_.topology, std::move(config));
}

}  // namespace gossamer
