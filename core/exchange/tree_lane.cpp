#include "core/exchange/tree_lane.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "comm/communicator.hpp"
#include "core/exchange/operations_lane.hpp"
#include "topology/graph.hpp"

namespace gossamer {
namespace {

class TreeLane : public OperationsLane {
 public:
  TreeLane(const LaneSetup& setup, const LaneSpec& spec)
      : OperationsLane(setup, spec),
        peers_(own_tree_peers(setup)),
        reserved_(setup.communicator.reserve(spec.numel, spec.dtype, 2 * std::ssize(peers_))) {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      inboxes_.push_back(setup.stream.allocate(spec.numel, spec.dtype));
      arriving().inboxes.push_back({inboxes_.back().block(), 1.0});
    }
  }

  void start(std::int64_t k, const Buffer& send) override {
    begin(k);
    const EventPtr ready = setup().stream.record();
    const std::int64_t numel = spec().numel;
    const std::int64_t bytes = numel * size_of(spec().dtype);
    std::vector<Request> requests;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const auto first = static_cast<std::int64_t>(i) * numel;
      requests.push_back(setup().communicator.exchange(
          peers_[i], part_of(ConstBlock(send.block()), first, numel), inboxes_[i].block(),
          {.label = {.what = "exchange", .bucket = spec().bucket, .round = k},
           .owner = both(send.owner(), inboxes_[i].owner()),
           .ready = ready,
           .trace = OpTrace(setup().timeline, bytes)}));
      setup().metrics.bytes_sent += static_cast<double>(bytes);
    }
    expect(std::move(requests));
  }

 private:
  std::vector<int> peers_;
  /// What the communicator needs for the messages.
  std::shared_ptr<void> reserved_;
  /// One for each peer.
  std::vector<Buffer> inboxes_;
};

}  // namespace

std::vector<std::vector<int>> tree_peers(const Topology& topology, int world_size) {
  std::vector<std::vector<int>> peers(static_cast<std::size_t>(world_size));
  const Round round = topology.round(0);
  std::vector<Arc> arcs = round.arcs;
  for (const Edge& edge : round.edges) append_arcs(edge, arcs);
  for (const Arc& arc : arcs) {
    if (arc.from != arc.to) peers[static_cast<std::size_t>(arc.from)].push_back(arc.to);
  }
  for (std::vector<int>& of_rank : peers) std::ranges::sort(of_rank);
  return peers;
}

std::vector<int> own_tree_peers(const LaneSetup& setup) {
  const Communicator& world = setup.communicator;
  return tree_peers(*setup.topology, world.size())[static_cast<std::size_t>(world.rank())];
}

std::unique_ptr<Lane> make_tree_lane(const LaneSetup& setup, const LaneSpec& spec) {
  if (!setup.topology || !is_tree(setup.topology->round(0))) {
    throw std::logic_error("make_tree_lane: a lane needs a tree");
  }
  return std::make_unique<TreeLane>(setup, spec);
}

}  // namespace gossamer
