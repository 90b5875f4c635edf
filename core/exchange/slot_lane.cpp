#include "core/exchange/slot_lane.hpp"

#include <utility>
#include <vector>

#include "core/exchange/plain_lane.hpp"
#include "optim/stream_copy.hpp"

namespace gossamer {
namespace {

class SlotLane : public PlainLane {
 public:
  SlotLane(const LaneSetup& setup, Peers& peers, const LaneSpec& spec,
           std::shared_ptr<HostMemory> memory)
      : PlainLane(setup, peers, spec),
        slots_(std::make_unique<HostSlots>(std::move(memory), spec)) {}

  void start(std::int64_t k, const Buffer& send) override {
    if (slots_ && !slots_->are_shared()) slots_.reset();
    if (!slots_) return PlainLane::start(k, send);
    const RankRound& part = begin(k);
    publish(part, send);
    if (is_idle(part)) return;
    hold(send);
    // Only the pass of an update adds up.
    sums_ = !spec().is_rare && take_sum(part);
    Request request;
    if (!sums_) {
      request = part.node_size > 1 ? nodes().start(part, k, send, arriving())
                                   : exchange_with_others(part);
    }
    expect(recorded(std::move(request)));
    messages().count(part, send.block().bytes());
  }

  void wait() override {
    // What a timeline shows of it, start() has recorded.
    finish(slots_ ? slots_->arrival({.label = messages().label(round())}) : Request());
  }

  Intake take() override {
    Intake intake = PlainLane::take();
    if (writes_slots_) {
      intake.exchange.copy = slots_->next();
      is_in_slot_ = true;
    }
    intake.exchange.sums = sums_ && !intake.inboxes.empty();
    return intake;
  }

  void forget() override {
    PlainLane::forget();
    is_in_slot_ = false;
  }

 private:
  /// Shows the block to the peers on this host, and counts the round in any case.
  void publish(const RankRound& part, const Buffer& send) {
    const bool is_in_slot = std::exchange(is_in_slot_, false);
    const bool is_read = slots_->are_read(part);
    if (is_read && !is_in_slot) {
      const TimelineScope scope(setup().timeline.get(),
                                {.what = "encode", .bucket = spec().bucket, .round = round()});
      setup().stream.run([slot = slots_->next(), x = send.block()] { stream_copy(slot, x); });
    }
    // The next round is likely to be of the same kind. Lanes without sums carry what no pass has
    // written.
    const bool is_written = spec().result == LaneResult::kMix && !spec().is_rare;
    if (is_written && !is_idle(part)) writes_slots_ = is_read;
    slots_->publish(part);
  }

  /// Takes the blocks that a round adds up from slots; false where they do not lie in slots.
  bool take_sum(const RankRound& part) {
    const std::vector<int> ranks = slots_->summed(part);
    if (ranks.empty()) return false;
    const bool is_node = part.node_size > 1;
    const double weight = is_node ? 1.0 / part.node_size : part.take.front();
    arriving() = {.keep = is_node ? 0.0 : part.keep};
    for (const int rank : ranks) arriving().inboxes.push_back({slots_->heard(rank), weight});
    return true;
  }

  /// The messages of a round of one level to and from the ranks that are not reached.
  Request exchange_with_others(const RankRound& part) {
    if (part.kind == RankRound::Kind::kGroup) return whole(exchange_blocks(part));
    const RankRound far = slots_->unreached(part);
    const std::span<const Buffer> inboxes = messages().reserve(far.receive_from.size());
    arriving() = {.keep = part.keep};
    auto next = inboxes.begin();
    for (std::size_t i = 0; i < part.take.size(); ++i) {
      const int peer = part.receive_from[i];
      const ConstBlock from =
          slots_->reaches(peer) ? slots_->heard(peer) : ConstBlock((next++)->block());
      arriving().inboxes.push_back({from, part.take[i]});
    }
    if (far.kind == RankRound::Kind::kIdle) return {};
    return whole(messages().exchange_in_parts(far, sent().block(), inboxes,
                                              messages().context(round(), sent())));
  }

  /// Where a timeline records, gives the wait to the worker now, to show how long messages take.
  Request recorded(Request request) {
    if (!setup().timeline) return request;
    OpContext context = messages().context(round(), sent());
    if (!context.trace.records()) return request;
    std::vector<Request> parts;
    parts.push_back(std::move(request));
    parts.push_back(slots_->arrival(std::move(context)));
    return all_of(std::move(parts));
  }

  /// Null: no other rank of the host is reached, and all blocks are messages.
  std::unique_ptr<HostSlots> slots_;
  /// True: updates write the next slot.
  bool writes_slots_ = false;
  /// True: the last update has done so.
  bool is_in_slot_ = false;
  /// True: the last round adds up the blocks that arrive.
  bool sums_ = false;
};

}  // namespace

std::unique_ptr<Lane> make_slot_lane(const LaneSetup& setup, Peers& peers, const LaneSpec& spec,
                                     std::shared_ptr<HostMemory> memory) {
  return std::make_unique<SlotLane>(setup, peers, spec, std::move(memory));
}

}  // namespace gossamer
