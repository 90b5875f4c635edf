#include "core/lanes/peer_lane.hpp"

#include <functional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/communicator.hpp"
#include "core/lanes/block_checksum.hpp"
#include "core/lanes/grid_lane.hpp"
#include "core/lanes/host_slots.hpp"
#include "optim/block_update.hpp"
#include "optim/stream_copy.hpp"
#include "topology/rank_round.hpp"

namespace gossamer {
namespace {

class PeerLane : public CodedLane {
 public:
  PeerLane(const LaneSetup& setup, Peers& peers, const LaneSpec& spec,
           std::shared_ptr<HostMemory> memory)
      : CodedLane(spec.result == LaneResult::kMix ? setup.codec : nullptr),
        setup_(setup),
        peers_(peers),
        spec_(spec),
        slots_(memory ? std::make_unique<HostSlots>(std::move(memory), spec) : nullptr) {}

  void start(std::int64_t k, const Buffer& send) override {
    const RankRound& round = peers_.round(k);
    round_ = k;
    update_scale_ = round.update_scale;
    has_arrived_ = false;
    const bool is_encoded = std::exchange(encoded_grid_, std::nullopt) == next_grid();
    if (slots_ && !slots_->are_shared()) slots_.reset();
    if (slots_) publish(round, k, send);
    if (round.kind == RankRound::Kind::kIdle && round.node_size == 1) return;
    is_under_way_ = true;
    sent_ = send;
    decodes_ = is_coded(round) && round.node_size == 1;
    // Sums hold more than one other rank's values.
    measures_ = stats() != nullptr && round.kind != RankRound::Kind::kGroup && round.node_size == 1;
    if (decodes_) grid_ = *next_grid();
    if (decodes_ && !is_encoded) {
      if (own_.block().data == nullptr) own_ = allocate_encoded();
      const TimelineScope scope(setup_.timeline.get(),
                                {.what = "encode", .bucket = spec_.bucket, .round = k});
      enqueue_encode(setup_.stream, {.codec = codec(), .own = own_.block(), .next_grid = grid_},
                     send.block(), setup_.simd);
    }
    if (setup_.stream.on_host()) {
      setup_.stream.run([sum = checksum_, block = send.block()] { sum->take(block); });
    }
    sums_ = slots_ && take_sum(round);
    if (sums_) {
      request_ = {};
    } else {
      request_ = round.node_size > 1 ? start_two_levels(round, k) : start_one_level(round, k);
    }
    if (slots_) record_arrival();
    has_arrived_ = true;
    const std::int64_t plain = send.block().bytes();
    setup_.metrics.bytes_sent += gossamer::bytes_sent(
        round, peers_.world().rank(),
        {plain, is_coded(round) ? encoded_bytes(*codec(), spec_.numel) : plain});
  }

  void wait() override {
    const bool was_under_way = std::exchange(is_under_way_, false);
    // What a timeline shows of it, start() has recorded.
    Request in_slots = slots_ ? slots_->arrival({.label = label_of(round_)}) : Request();
    if (!was_under_way && !in_slots.pending()) return;
    const ScopedTimer timer(setup_.metrics.wait_s);
    const TimelineScope scope(setup_.timeline.get(),
                              {.what = "wait", .bucket = spec_.bucket, .round = round_});
    in_slots.wait();
    request_.wait_on(setup_.stream);
    if (!was_under_way || !setup_.stream.on_host()) return;
    setup_.stream.run([sum = checksum_, block = sent_.block(), spec = spec_] {
      if (sum->matches(block)) return;
      throw std::logic_error(concat("the ", spec.content, " of bucket ", spec.bucket,
                                    " were written while their exchange was in flight; write "
                                    "parameters in the scope of write_parameters() only"));
    });
  }

  Intake take() override {
    Intake intake{.update_scale = update_scale_};
    if (decodes_ && next_grid()) {
      // The next round is likely to be of the same kind.
      intake.exchange.coding = {.codec = codec(),
                                .own = own_.block(),
                                .encodes = true,
                                .grid = grid_,
                                .next_grid = *next_grid()};
      encoded_grid_ = next_grid();
    }
    if (writes_slots_) {
      intake.exchange.copy = slots_->next();
      is_in_slot_ = true;
    }
    if (!std::exchange(has_arrived_, false)) return intake;
    intake.keep = keep_;
    intake.inboxes = arriving_;
    intake.exchange.sums = sums_;
    if (measures_) intake.exchange.stats = stats();
    if (!decodes_) return intake;
    Coding& coding = intake.exchange.coding;
    coding.codec = codec();
    coding.own = own_.block();
    coding.grid = grid_;
    coding.decodes = true;
    return intake;
  }

  void forget() override {
    has_arrived_ = false;
    encoded_grid_.reset();
    is_in_slot_ = false;
  }

  void visit(StateVisitor& visitor, std::span<const std::string> names) override {
    if (spec_.result == LaneResult::kMix) GridLane::skip_state(visitor, names);
  }

 private:
  /// Whether the messages to the peers of a round are encoded.
  [[nodiscard]] bool is_coded(const RankRound& round) const {
    if (codec() == nullptr || !next_grid() || round.kind == RankRound::Kind::kGroup) return false;
    // The worker mixes the sums of nodes, and knows no grid.
    return round.node_size == 1 || !needs_grid();
  }

  /// Shows the block to the peers on this host, and counts the round in any case.
  void publish(const RankRound& round, std::int64_t k, const Buffer& send) {
    const bool is_in_slot = std::exchange(is_in_slot_, false);
    const bool is_idle = round.kind == RankRound::Kind::kIdle && round.node_size == 1;
    const bool is_read = slots_->are_read(round);
    if (is_read && !is_in_slot) {
      const TimelineScope scope(setup_.timeline.get(),
                                {.what = "encode", .bucket = spec_.bucket, .round = k});
      setup_.stream.run([slot = slots_->next(), x = send.block()] { stream_copy(slot, x); });
    }
    // The next round is likely to be of the same kind. Lanes without sums carry what no pass has
    // written.
    if (spec_.result == LaneResult::kMix && !is_idle) writes_slots_ = is_read;
    slots_->publish(round);
  }

  /// Takes the blocks that a round adds up from slots; false where they do not lie in slots.
  bool take_sum(const RankRound& round) {
    const std::vector<int> ranks = slots_->summed(round);
    if (ranks.empty()) return false;
    const bool is_node = round.node_size > 1;
    keep_ = is_node ? 0.0 : round.keep;
    const double weight = is_node ? 1.0 / round.node_size : round.take.front();
    arriving_.clear();
    for (const int rank : ranks) arriving_.push_back({slots_->heard(rank), weight});
    return true;
  }

  /// Where a timeline records, gives the wait to the worker now, to show how long messages take.
  void record_arrival() {
    if (!setup_.timeline) return;
    OpContext context = context_of(round_);
    if (!context.trace.records()) return;
    std::vector<Request> parts;
    parts.push_back(std::move(request_));
    parts.push_back(slots_->arrival(std::move(context)));
    request_ = all_of(std::move(parts));
  }

  Buffer allocate_encoded() {
    return setup_.stream.allocate(encoded_bytes(*codec(), spec_.numel), DType::kUInt8);
  }

  /// Allocates inboxes until there are `count` of them. Returns the inboxes for plain blocks, or
  /// those for encoded ones.
  std::vector<Buffer>& reserve(std::size_t count, bool coded) {
    std::vector<Buffer>& inboxes = coded ? encoded_inboxes_ : inboxes_;
    while (inboxes.size() < count) {
      inboxes.push_back(coded ? allocate_encoded()
                              : setup_.stream.allocate(spec_.numel, spec_.dtype));
    }
    return inboxes;
  }

  [[nodiscard]] OpLabel label_of(std::int64_t k) const {
    const bool sums = spec_.result == LaneResult::kSum;
    return {.what = sums ? "all-reduce" : "exchange", .bucket = spec_.bucket, .round = k};
  }

  [[nodiscard]] OpContext context_of(std::int64_t k) const {
    // The operation may outlive this lane, so it holds the memory that it uses.
    std::shared_ptr<void> owner = sent_.owner();
    for (const Buffer& inbox : inboxes_) owner = both(std::move(owner), inbox.owner());
    for (const Buffer& inbox : encoded_inboxes_) owner = both(std::move(owner), inbox.owner());
    if (codec() != nullptr) owner = both(std::move(owner), own_.owner());
    return {.label = label_of(k),
            .owner = std::move(owner),
            .ready = setup_.stream.record(),
            .trace = OpTrace(setup_.timeline, sent_.block().bytes())};
  }

  /// Exchanges `send` with the peers of a round, and receives into `inboxes`.
  Request exchange(const RankRound& round, ConstBlock send, std::span<const Buffer> inboxes,
                   OpContext context) {
    const auto world_rank = [&round](int place) { return place * round.node_size; };
    context.trace.set_bytes(send.bytes());
    switch (round.kind) {
      case RankRound::Kind::kIdle:
        break;
      case RankRound::Kind::kPair:
        return peers_.world().exchange(world_rank(round.send_to.front()), send,
                                       inboxes.front().block(), std::move(context));
      case RankRound::Kind::kGroup:
        return peers_.parts().group(round).all_reduce_sum(send, inboxes.front().block(),
                                                          std::move(context));
      case RankRound::Kind::kNeighbors: {
        std::vector<int> peers = round.send_to;
        for (int& peer : peers) peer = world_rank(peer);
        std::vector<Incoming> incoming;
        for (std::size_t i = 0; i < round.receive_from.size(); ++i) {
          incoming.push_back({world_rank(round.receive_from[i]), inboxes[i].block()});
        }
        return peers_.world().exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                                      std::move(context));
      }
    }
    return {};
  }

  Request start_one_level(const RankRound& round, std::int64_t k) {
    keep_ = decodes_ ? 1.0 : round.keep;
    arriving_.clear();
    const RankRound far = slots_ ? slots_->unreached(round) : round;
    const bool sums = round.kind == RankRound::Kind::kGroup;
    const std::vector<Buffer>& inboxes = reserve(sums ? 1 : far.receive_from.size(), decodes_);
    auto next = inboxes.begin();
    for (std::size_t i = 0; i < round.take.size(); ++i) {
      const bool is_near = !sums && slots_ && slots_->reaches(round.receive_from[i]);
      const ConstBlock from =
          is_near ? slots_->heard(round.receive_from[i]) : ConstBlock((next++)->block());
      arriving_.push_back({from, round.take[i]});
    }
    if (far.kind == RankRound::Kind::kIdle) return {};
    return exchange(far, decodes_ ? own_.block() : sent_.block(), inboxes, context_of(k));
  }

  /// A round in two levels: the ranks of a node sum their blocks; the first rank of the node
  /// exchanges the sum with other nodes and mixes; then the ranks of the node get the result.
  Request start_two_levels(const RankRound& round, std::int64_t k) {
    const double mean = 1.0 / round.node_size;
    const Block inbox = reserve(1, false).front().block();
    Request sum = peers_.parts()
                      .node_sum(round.node_size)
                      .all_reduce_sum(sent_.block(), inbox, context_of(k));
    keep_ = 0.0;
    arriving_ = {{inbox, mean}};
    if (round.kind == RankRound::Kind::kIdle) return sum;

    const bool leads = peers_.world().rank() % round.node_size == 0;
    Request between;
    if (leads) between = start_between_nodes(round, k, inbox, sum.state());
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
    if (leads) context.prepare = mixing_of_nodes(round, inbox, context.owner);
    return peers_.parts().node_result(round.node_size).broadcast(inbox, 0, std::move(context));
  }

  /// The leader's exchange of its node's sum, which starts after `sum`.
  Request start_between_nodes(const RankRound& round, std::int64_t k, const Block& inbox,
                              std::shared_ptr<RequestState> sum) {
    const bool coded = is_coded(round);
    if (coded && own_.block().data == nullptr) own_ = allocate_encoded();
    // The first plain inbox holds the node's sum.
    const std::size_t first = coded ? 0 : 1;
    const std::vector<Buffer>& inboxes = reserve(first + round.take.size(), coded);
    OpContext context = context_of(k);
    context.after = std::move(sum);
    if (coded) {
      context.prepare = [stream = peers_.world().stream(), codec = codec(), own = own_.block(),
                         inbox, simd = setup_.simd, kept = context.owner]() -> EventPtr {
        enqueue_encode(*stream, {.codec = codec, .own = own}, inbox, simd);
        stream->keep(kept);
        return stream->record();
      };
    }
    return exchange(round, coded ? own_.block() : inbox, std::span(inboxes).subspan(first),
                    std::move(context));
  }

  /// The work with which a leader mixes the sums of other nodes into its own node's.
  [[nodiscard]] std::function<EventPtr()> mixing_of_nodes(const RankRound& round,
                                                          const Block& inbox,
                                                          std::shared_ptr<void> owner) const {
    const double mean = 1.0 / round.node_size;
    const bool coded = is_coded(round);
    std::vector<Inbox> heard;
    for (std::size_t i = 0; i < round.take.size(); ++i) {
      const Buffer& from = coded ? encoded_inboxes_[i] : inboxes_[1 + i];
      heard.push_back({from.block(), round.take[i] * mean});
    }
    return [stream = peers_.world().stream(), inbox, keep = (coded ? 1.0 : round.keep) * mean,
            heard = std::move(heard),
            exchange = ExchangeWork{.coding = {.codec = coded ? codec() : nullptr,
                                               .own = own_.block(),
                                               .decodes = coded}},
            simd = setup_.simd, kept = std::move(owner)]() -> EventPtr {
      enqueue_mix(*stream, inbox, keep, heard, exchange, simd);
      // If the operation fails, the stream may still use this memory when the operation's owner
      // releases it.
      stream->keep(kept);
      return stream->record();
    };
  }

  const LaneSetup& setup_;
  Peers& peers_;
  LaneSpec spec_;
  /// Null: all messages go through the communicator.
  std::unique_ptr<HostSlots> slots_;
  /// True: updates write the next slot.
  bool writes_slots_ = false;
  /// True: the last update has done so.
  bool is_in_slot_ = false;
  bool is_under_way_ = false;
  /// True: the last round adds up the blocks in arriving_.
  bool sums_ = false;
  /// The block of the round under way.
  Buffer sent_;
  /// Its encoded form; in rounds of two levels, that of the node's sum.
  Buffer own_;
  /// Of the round under way.
  Grid grid_ = {};
  /// The grid with which the update that uses the last Intake encodes the next block; null: it does
  /// not encode.
  std::optional<Grid> encoded_grid_;
  /// True: the update adds the differences of the round under way to stats().
  bool measures_ = false;
  /// True: the blocks of the last round are encoded, and this rank's update decodes them.
  bool decodes_ = false;
  std::vector<Buffer> inboxes_;
  std::vector<Buffer> encoded_inboxes_;
  Request request_;
  double keep_ = 1.0;
  std::vector<Inbox> arriving_;
  bool has_arrived_ = false;
  double update_scale_ = 1.0;
  /// The last round that was started.
  std::int64_t round_ = -1;
  std::shared_ptr<BlockChecksum> checksum_ = std::make_shared<BlockChecksum>();
};

}  // namespace

std::unique_ptr<CodedLane> make_peer_lane(const LaneSetup& setup, Peers& peers,
                                          const LaneSpec& spec,
                                          std::shared_ptr<HostMemory> memory) {
  return std::make_unique<PeerLane>(setup, peers, spec, std::move(memory));
}

}  // namespace gossamer
