#include "core/exchange/peer_lanes.hpp"

#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/communicator.hpp"
#include "core/exchange/coded_lane.hpp"
#include "core/exchange/coded_sum_lane.hpp"
#include "core/exchange/gathered_sum_lane.hpp"
#include "core/exchange/grid_lane.hpp"
#include "core/exchange/host_slots.hpp"
#include "core/exchange/plain_lane.hpp"
#include "core/exchange/shard_lane.hpp"
#include "core/exchange/slot_lane.hpp"
#include "core/exchange/tree_lane.hpp"
#include "optim/codec.hpp"
#include "topology/nodes.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

/// The largest groups whose members exchange encoded blocks.
MostMembers most_members(const LaneSetup& setup) {
  if (setup.codec == nullptr || setup.codec->mixing() == nullptr) return {};
  const std::int64_t most = most_coded_members(*setup.codec->mixing());
  return {.ranks = most, .nodes = setup.codec->needs_grid() ? 0 : most};
}

/// The ranks of this rank's node, and those with its place in all nodes.
std::pair<Communicator&, Communicator&> parts_of_nodes(Communicator& world, int node_size) {
  const auto nodes = ranks_of_nodes(world.size(), node_size);
  std::vector<std::vector<int>> places(static_cast<std::size_t>(node_size));
  for (const std::vector<int>& node : nodes) {
    for (std::size_t place = 0; place < node.size(); ++place) places[place].push_back(node[place]);
  }
  constexpr std::string_view kInside = "inside nodes";
  constexpr std::string_view kBetween = "between nodes";
  world.make_subgroups(kInside, nodes);
  world.make_subgroups(kBetween, places);
  return {
      *world.find_subgroup(kInside, nodes[static_cast<std::size_t>(world.rank() / node_size)]),
      *world.find_subgroup(kBetween, places[static_cast<std::size_t>(world.rank() % node_size)])};
}

}  // namespace

struct PeerLanes::Nodes {
  PeerLanes inside;
  PeerLanes between;
};

PeerLanes::PeerLanes(LaneSetup setup) : setup_(std::move(setup)), parts_(setup_.communicator) {}

// Lanes refer to members of the factory.
PeerLanes::~PeerLanes() { drop_lanes(); }

std::shared_ptr<HostMemory> PeerLanes::memory_for(const LaneSpec& spec) {
  if (spec.members != LaneMembers::kTopology) return nullptr;
  // A thread that works off a stream later cannot wait for slots.
  const bool works_at_once = setup_.stream.on_host() && setup_.stream.immediate();
  if (!setup_.shares_memory || !works_at_once) return nullptr;
  if (!memory_ || memory_->is_shared()) {
    memory_ = std::make_shared<HostMemory>(setup_.communicator);
  }
  return memory_;
}

void PeerLanes::share_memory() {
  if (memory_ && !memory_->is_shared()) memory_->share();
  if (!nodes_) return;
  nodes_->inside.share_memory();
  nodes_->between.share_memory();
}

HostSharing PeerLanes::host_sharing() const { return memory_ ? memory_->sharing() : HostSharing(); }

Peers& PeerLanes::peers_of(LaneResult result) {
  std::unique_ptr<Peers>& peers = peers_[result];
  if (peers) return *peers;
  const int size = num_ranks();
  switch (result) {
    case LaneResult::kMix:
    case LaneResult::kApart:
      if (!setup_.topology) throw std::logic_error("PeerLanes: a lane needs a topology");
      peers = std::make_unique<Peers>(
          parts_, *setup_.topology,
          result == LaneResult::kMix ? most_members(setup_) : MostMembers{.ranks = size});
      break;
    case LaneResult::kMean:
      complete_ = make_topology("complete", {.size = size, .node_size = size});
      peers = std::make_unique<Peers>(parts_, *complete_);
      break;
    case LaneResult::kSum:
      peers = std::make_unique<Peers>(parts_);
      break;
    case LaneResult::kGather:
    case LaneResult::kShardSum:
      throw std::logic_error("PeerLanes: such a lane has no rounds");
  }
  return *peers;
}

std::int64_t PeerLanes::num_tree_peers() const {
  if (!setup_.topology) throw std::logic_error("PeerLanes: a tree is needed");
  return std::ssize(own_tree_peers(setup_));
}

void PeerLanes::set_topology(std::shared_ptr<const Topology> topology) {
  peers_.erase(LaneResult::kMix);
  peers_.erase(LaneResult::kApart);
  setup_.topology = std::move(topology);
  nodes_.reset();
}

int PeerLanes::node_size() const {
  return setup_.topology ? setup_.topology->round(0).node_size : 1;
}

NodeLanes PeerLanes::split_by_node() {
  const int rank = setup_.communicator.rank();
  const int size = node_size();
  if (!nodes_) {
    nodes_ = all_nodes_[size];
    if (!nodes_) {
      const auto [inside, between] = parts_of_nodes(setup_.communicator, size);
      const auto setup_on = [this](Communicator& ranks) {
        return LaneSetup{.stream = setup_.stream,
                         .communicator = ranks,
                         .topology = nullptr,
                         .shares_memory = false,
                         .metrics = setup_.metrics,
                         .simd = setup_.simd,
                         .timeline = setup_.timeline};
      };
      const LaneSetup of_node = setup_on(inside);
      const LaneSetup of_peers = setup_on(between);
      nodes_.reset(new Nodes{PeerLanes(of_node), PeerLanes(of_peers)});
      all_nodes_[size] = nodes_;
    }
    nodes_->between.set_topology(between_nodes(setup_.topology));
  }
  return {.inside = nodes_->inside, .between = nodes_->between, .place = rank % size};
}

double PeerLanes::model_weight() const {
  if (async_exchange_) return async_exchange_->state().mass;
  if (nodes_) return nodes_->between.model_weight();
  const auto peers = peers_.find(LaneResult::kMix);
  return peers == peers_.end() ? 1.0 : peers->second->weight();
}

void PeerLanes::resume(double weight) {
  // An asynchronous exchange saves its mass itself.
  if (async_exchange_) return;
  if (nodes_) return nodes_->between.resume(weight);
  for (const auto& [result, peers] : peers_) peers->resume(weight);
}

void PeerLanes::drain() {
  for (const MadeLane& made_lane : made()) made_lane.lane->drain();
  if (async_exchange_) async_exchange_->close();
  if (!nodes_) return;
  nodes_->between.drain();
  nodes_->inside.drain();
}

void PeerLanes::forget() {
  for (const MadeLane& made_lane : made()) {
    if (made_lane.spec.forgets) made_lane.lane->forget();
  }
  if (!nodes_) return;
  nodes_->between.forget();
  nodes_->inside.forget();
}

void PeerLanes::visit(
    StateVisitor& visitor,
    const std::function<std::vector<std::string>(std::int64_t bucket)>& names_of) {
  for (const MadeLane& made_lane : made()) {
    std::vector<std::string> names = names_of(made_lane.spec.bucket);
    for (std::string& name : names) name = concat(name, "/", made_lane.spec.content);
    made_lane.lane->visit(visitor, names);
  }
  if (async_exchange_) async_exchange_->visit(visitor);
}

void PeerLanes::drop_lanes() {
  drop_made();
  async_exchange_.reset();
  for (const auto& [size, nodes] : all_nodes_) {
    nodes->between.drop_lanes();
    nodes->inside.drop_lanes();
  }
}

std::unique_ptr<Lane> PeerLanes::make(const LaneSpec& spec) {
  if (spec.result == LaneResult::kGather || spec.result == LaneResult::kShardSum) {
    return make_shard_lane(setup_, spec);
  }
  if (spec.members == LaneMembers::kTree) return make_tree_lane(setup_, spec);
  const bool sums = spec.result == LaneResult::kSum && spec.num_coded > 0 && num_ranks() > 1;
  if (setup_.codec != nullptr && sums) {
    if (setup_.codec->is_sparse()) return make_gathered_sum_lane(setup_, spec);
    Communicator& world = setup_.communicator;
    return make_coded_sum_lane(
        setup_, {.shards = world, .results = world.duplicate("coded results")}, spec);
  }
  if (setup_.codec != nullptr && spec.result == LaneResult::kMix) return make_coded(spec);
  Peers& peers = peers_of(spec.result);
  auto memory = memory_for(spec);
  if (memory) return make_slot_lane(setup_, peers, spec, std::move(memory));
  return std::make_unique<PlainLane>(setup_, peers, spec);
}

std::unique_ptr<Lane> PeerLanes::make_coded(const LaneSpec& spec) {
  const Codec& codec = *setup_.codec;
  if (codec.mixing() == nullptr) {
    throw std::logic_error(concat("PeerLanes: the codec ", codec.name(), " encodes sums alone"));
  }
  const auto next = first_grid(&codec);
  auto blocks = make_coded_lane(setup_, peers_of(spec.result), spec, next);
  if (!codec.needs_grid()) return blocks;
  return std::make_unique<GridLane>(
      GridLane::Parts{.blocks = std::move(blocks),
                      .next = next,
                      .codec = *codec.mixing(),
                      .votes = make(GridLane::votes_of(spec)),
                      .stream = setup_.stream,
                      .num_wide = setup_.metrics.num_wide_differences},
      spec);
}

AsyncExchange& PeerLanes::make_async_exchange(AsyncExchange::Config config) {
  if (!setup_.topology)
    throw std::logic_error("PeerLanes: an asynchronous exchange needs a topology");
  async_exchange_ = std::make_unique<AsyncExchange>(
      setup_.communicator, setup_.stream, setup_.metrics, *setup_.topology, std::move(config));
  return *async_exchange_;
}

}  // namespace gossamer
