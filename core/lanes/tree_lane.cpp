#include "core/lanes/tree_lane.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "comm/communicator.hpp"
#include "topology/graph.hpp"

namespace gossamer {
namespace {

class TreeLane : public Lane {
 public:
  TreeLane(const LaneSetup& setup, const LaneSpec& spec)
      : setup_(setup), spec_(spec), peers_(own_tree_peers(setup)) {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      inboxes_.push_back(setup.stream.allocate(spec.numel, spec.dtype));
      arriving_.push_back({inboxes_.back().block(), 1.0});
    }
    const auto num_blocks = 2 * std::ssize(peers_);
    if (!setup.stream.on_host()) {
      reserved_ = setup.communicator.reserve(spec.numel, spec.dtype, num_blocks);
    }
  }

  void start(std::int64_t k, const Buffer& send) override {
    round_ = k;
    const EventPtr ready = setup_.stream.record();
    const std::int64_t bytes = spec_.numel * size_of(spec_.dtype);
    requests_.clear();
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const auto first = static_cast<std::int64_t>(i) * spec_.numel;
      requests_.push_back(setup_.communicator.exchange(
          peers_[i], part_of(ConstBlock(send.block()), first, spec_.numel), inboxes_[i].block(),
          {.label = {.what = "exchange", .bucket = spec_.bucket, .round = k},
           .owner = both(send.owner(), inboxes_[i].owner()),
           .ready = ready,
           .trace = OpTrace(setup_.timeline, bytes)}));
      setup_.metrics.bytes_sent += static_cast<double>(bytes);
    }
    has_arrived_ = true;
  }

  void wait() override {
    if (requests_.empty()) return;
    const ScopedTimer timer(setup_.metrics.wait_s);
    const TimelineScope scope(setup_.timeline.get(),
                              {.what = "wait", .bucket = spec_.bucket, .round = round_});
    for (Request& request : requests_) request.wait_on(setup_.stream);
    requests_.clear();
  }

  Intake take() override {
    if (!std::exchange(has_arrived_, false)) return {};
    return {.inboxes = arriving_};
  }

  void forget() override { has_arrived_ = false; }

 private:
  const LaneSetup& setup_;
  LaneSpec spec_;
  std::vector<int> peers_;
  /// One for each peer.
  std::vector<Buffer> inboxes_;
  std::vector<Inbox> arriving_;
  /// One for each peer; empty after wait().
  std::vector<Request> requests_;
  /// What the communicator needs for the messages.
  std::shared_ptr<void> reserved_;
  bool has_arrived_ = false;
  /// The last round that was started.
  std::int64_t round_ = -1;
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
