#include "core/exchange/node_round.hpp"

#include <span>
#include <utility>

#include "optim/block_update.hpp"

namespace gossamer {

void EncodedBlocks::reserve(Stream& stream, std::int64_t numel, std::size_t count) {
  const auto allocate = [&] { return stream.allocate(codec.encoded_bytes(numel), DType::kUInt8); };
  if (own.block().data == nullptr) own = allocate();
  while (inboxes.size() < count) inboxes.push_back(allocate());
}

std::vector<Buffer> EncodedBlocks::all() const {
  std::vector<Buffer> all = inboxes;
  all.push_back(own);
  return all;
}

OpContext NodeRound::context(std::int64_t k, const Buffer& sent) const {
  return messages_.context(k, sent, encoded_ ? encoded_->all() : std::vector<Buffer>());
}

Request NodeRound::start(const RankRound& round, std::int64_t k, const Buffer& sent,
                         Arriving& arriving) {
  Peers& peers = messages_.peers();
  const double mean = 1.0 / round.node_size;
  const Block inbox = messages_.reserve(1).front().block();
  Request sum =
      peers.parts().node_sum(round.node_size).all_reduce_sum(sent.block(), inbox, context(k, sent));
  arriving = {.keep = 0.0, .inboxes = {{inbox, mean}}};
  if (round.kind == RankRound::Kind::kIdle) return sum;

  const bool leads = peers.world().rank() % round.node_size == 0;
  Request between;
  if (leads) between = start_between(round, k, sent, sum.state());
  if (round.take.empty()) {
    // This node receives from no other node, so every rank mixes in the node's own sum. The leader
    // waits for its send, because the inbox that it sends from must not change before.
    arriving.inboxes = {{inbox, round.keep * mean}};
    return leads ? std::move(between) : std::move(sum);
  }

  // The leader mixes into its inbox; the other ranks of the node get a copy.
  arriving.inboxes = {{inbox, 1.0}};
  OpContext after = context(k, sent);
  after.after = leads ? between.state() : sum.state();
  if (leads) after.prepare = mixing(round, inbox, after.owner);
  return peers.parts().node_result(round.node_size).broadcast(inbox, 0, std::move(after));
}

Request NodeRound::start_between(const RankRound& round, std::int64_t k, const Buffer& sent,
                                 std::shared_ptr<RequestState> sum) {
  const LaneSetup& setup = messages_.setup();
  // The first plain inbox holds the node's sum.
  const Block inbox = messages_.reserve(1).front().block();
  if (!encodes(round)) {
    const std::span<const Buffer> inboxes = messages_.reserve(1 + round.take.size()).subspan(1);
    OpContext after = context(k, sent);
    after.after = std::move(sum);
    return messages_.exchange(round, inbox, inboxes, std::move(after));
  }
  encoded_->reserve(setup.stream, messages_.spec().numel, round.take.size());
  const Block own = encoded_->own.block();
  OpContext after = context(k, sent);
  after.after = std::move(sum);
  after.prepare = [stream = setup.communicator.stream(), codec = &encoded_->codec, own, inbox,
                   simd = setup.simd, kept = after.owner]() -> EventPtr {
    enqueue_encode(*stream, {.codec = codec, .own = own}, inbox, simd);
    stream->keep(kept);
    return stream->record();
  };
  return messages_.exchange(round, own, encoded_->inboxes, std::move(after));
}

std::function<EventPtr()> NodeRound::mixing(const RankRound& round, const Block& inbox,
                                            std::shared_ptr<void> owner) {
  const double mean = 1.0 / round.node_size;
  const bool decodes = encodes(round);
  const std::span<const Buffer> from =
      decodes ? std::span<const Buffer>(encoded_->inboxes) : messages_.reserve(1).subspan(1);
  std::vector<Inbox> heard;
  for (std::size_t i = 0; i < round.take.size(); ++i) {
    heard.push_back({from[i].block(), round.take[i] * mean});
  }
  ExchangeWork work;
  if (decodes) {
    work.coding = {.codec = &encoded_->codec, .own = encoded_->own.block(), .decodes = true};
  }
  return [stream = messages_.setup().communicator.stream(), inbox,
          keep = (decodes ? 1.0 : round.keep) * mean, heard = std::move(heard), work,
          simd = messages_.setup().simd, kept = std::move(owner)]() -> EventPtr {
    enqueue_mix(*stream, inbox, keep, heard, work, simd);
    // If the operation fails, the stream may still use this memory when the operation's owner
    // releases it.
    stream->keep(kept);
    return stream->record();
  };
}

}  // namespace gossamer
