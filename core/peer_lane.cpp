#include "core/peer_lane.hpp"

#include <stdexcept>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/communicator.hpp"
#include "core/block_checksum.hpp"
#include "optim/block_update.hpp"
#include "topology/rank_round.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

class PeerLane : public Lane {
 public:
  PeerLane(const PeerLanes::Setup& setup, Peers& peers, const LaneSpec& spec)
      : setup_(setup), peers_(peers), spec_(spec) {}

  void start(std::int64_t k, const Buffer& send) override {
    const RankRound& round = peers_.round(k);
    update_scale_ = round.update_scale;
    has_arrived_ = false;
    if (round.kind == RankRound::Kind::kIdle && round.node_size == 1) return;
    sent_ = send;
    if (setup_.stream.on_host()) {
      setup_.stream.run([sum = checksum_, block = send.block()] { sum->take(block); });
    }
    request_ = round.node_size > 1 ? start_two_levels(round, k) : start_one_level(round, k);
    has_arrived_ = true;
    setup_.metrics.bytes_sent +=
        gossamer::bytes_sent(round, peers_.world().rank(), send.block().bytes());
  }

  void wait() override {
    if (!request_.pending()) return;
    const ScopedTimer timer(setup_.metrics.wait_s);
    request_.wait_on(setup_.stream);
    if (!setup_.stream.on_host()) return;
    setup_.stream.run([sum = checksum_, block = sent_.block(), spec = spec_] {
      if (sum->matches(block)) return;
      throw std::logic_error(concat("the ", spec.content, " of bucket ", spec.bucket,
                                    " were written while their exchange was in flight; write "
                                    "parameters in the scope of write_parameters() only"));
    });
  }

  Intake take() override {
    if (!std::exchange(has_arrived_, false)) return {.update_scale = update_scale_};
    return {.keep = keep_, .inboxes = arriving_, .update_scale = update_scale_};
  }

  void forget() override { has_arrived_ = false; }

 private:
  /// Allocates inboxes until there are `count` of them.
  void reserve(std::size_t count) {
    while (inboxes_.size() < count) {
      inboxes_.push_back(setup_.stream.allocate(spec_.numel, spec_.dtype));
    }
  }

  [[nodiscard]] OpContext context_of(std::int64_t k) const {
    // The operation may outlive this lane, so it holds the memory that it uses.
    std::shared_ptr<void> owner = sent_.owner();
    for (const Buffer& inbox : inboxes_) owner = both(std::move(owner), inbox.owner());
    const bool sums = spec_.rounds == LaneRounds::kSum;
    return {.label = {.what = sums ? "all-reduce" : "exchange", .bucket = spec_.bucket, .round = k},
            .owner = std::move(owner),
            .ready = setup_.stream.record()};
  }

  /// Exchanges `send` with the peers of a round, and receives into the inboxes from `first` on.
  Request exchange(const RankRound& round, ConstBlock send, std::size_t first, OpContext context) {
    const auto world_rank = [&round](int place) { return place * round.node_size; };
    switch (round.kind) {
      case RankRound::Kind::kIdle:
        break;
      case RankRound::Kind::kPair:
        return peers_.world().exchange(world_rank(round.send_to.front()), send,
                                       inboxes_[first].block(), std::move(context));
      case RankRound::Kind::kGroup:
        return peers_.group(round).all_reduce_sum(send, inboxes_[first].block(),
                                                  std::move(context));
      case RankRound::Kind::kNeighbors: {
        std::vector<int> peers = round.send_to;
        for (int& peer : peers) peer = world_rank(peer);
        std::vector<Incoming> incoming;
        for (std::size_t i = 0; i < round.receive_from.size(); ++i) {
          incoming.push_back({world_rank(round.receive_from[i]), inboxes_[first + i].block()});
        }
        return peers_.world().exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                                      std::move(context));
      }
    }
    return {};
  }

  Request start_one_level(const RankRound& round, std::int64_t k) {
    keep_ = round.keep;
    arriving_.clear();
    reserve(round.take.size());
    for (std::size_t i = 0; i < round.take.size(); ++i) {
      arriving_.push_back({inboxes_[i].block(), round.take[i]});
    }
    return exchange(round, sent_.block(), 0, context_of(k));
  }

  /// A round in two levels: the ranks of a node sum their blocks; the first rank of the node
  /// exchanges the sum with other nodes and mixes; then the ranks of the node get the result.
  Request start_two_levels(const RankRound& round, std::int64_t k) {
    const double mean = 1.0 / round.node_size;
    reserve(1);
    const Block inbox = inboxes_.front().block();
    Request sum =
        peers_.node_sum(round.node_size).all_reduce_sum(sent_.block(), inbox, context_of(k));
    keep_ = 0.0;
    arriving_ = {{inbox, mean}};
    if (round.kind == RankRound::Kind::kIdle) return sum;

    const bool leads = peers_.world().rank() % round.node_size == 0;
    Request between;
    if (leads) {
      reserve(1 + round.take.size());
      OpContext context = context_of(k);
      context.after = sum.state();
      between = exchange(round, inbox, 1, std::move(context));
    }
    if (round.take.empty()) {
      // This node receives from no other node, so every rank mixes in the node's own sum. The
      // leader waits for its send, because the inbox that it sends from must not change before.
      arriving_ = {{inbox, round.keep * mean}};
      return leads ? std::move(between) : std::move(sum);
    }

    // The leader mixes into its inbox; the other ranks of the node get a copy.
    arriving_ = {{inbox, 1.0}};
    OpContext context = context_of(k);
    context.after = leads ? between.state() : sum.state();
    if (leads) {
      std::vector<Inbox> heard;
      for (std::size_t i = 0; i < round.take.size(); ++i) {
        heard.push_back({inboxes_[1 + i].block(), round.take[i] * mean});
      }
      context.prepare = [stream = peers_.world().stream(), inbox, keep = round.keep * mean,
                         heard = std::move(heard), simd = setup_.simd,
                         kept = context.owner]() -> EventPtr {
        enqueue_mix(*stream, inbox, keep, heard, simd);
        // If the operation fails, the stream may still use this memory when the operation's owner
        // releases it.
        stream->keep(kept);
        return stream->record();
      };
    }
    return peers_.node_result(round.node_size).broadcast(inbox, 0, std::move(context));
  }

  const PeerLanes::Setup& setup_;
  Peers& peers_;
  LaneSpec spec_;
  /// The block of the round under way.
  Buffer sent_;
  std::vector<Buffer> inboxes_;
  Request request_;
  double keep_ = 1.0;
  std::vector<Inbox> arriving_;
  bool has_arrived_ = false;
  double update_scale_ = 1.0;
  std::shared_ptr<BlockChecksum> checksum_ = std::make_shared<BlockChecksum>();
};

}  // namespace

Peers& PeerLanes::peers_of(LaneRounds rounds) {
  std::unique_ptr<Peers>& peers = peers_[rounds];
  if (peers) return *peers;
  Communicator& world = setup_.communicator;
  const int size = world.size();
  switch (rounds) {
    case LaneRounds::kTopology:
      if (!setup_.topology) throw std::logic_error("PeerLanes: a lane needs a topology");
      peers = std::make_unique<Peers>(world, *setup_.topology);
      break;
    case LaneRounds::kMean:
      complete_ = make_topology("complete", {.size = size, .node_size = size});
      peers = std::make_unique<Peers>(world, *complete_);
      break;
    case LaneRounds::kSum:
      peers = std::make_unique<Peers>(world);
      break;
  }
  return *peers;
}

std::unique_ptr<Lane> PeerLanes::make_lane(const LaneSpec& spec) {
  return std::make_unique<PeerLane>(setup_, peers_of(spec.rounds), spec);
}

}  // namespace gossamer
