#include "core/lanes/round_messages.hpp"

#include <utility>

namespace gossamer {

RoundMessages::RoundMessages(const LaneSetup& setup, Peers& peers, const LaneSpec& spec)
    : setup_(setup), peers_(peers), spec_(spec) {
  if (setup.stream.on_host()) return;
  // Now, because on a GPU later calls may wait for work that waits for a message.
  const RoundNeeds needs = peers.most_needs();
  reserve(static_cast<std::size_t>(needs.inboxes));
  reserved_ = setup.communicator.reserve(spec.numel, spec.dtype, needs.carried);
}

std::span<const Buffer> RoundMessages::reserve(std::size_t count) {
  while (inboxes_.size() < count) {
    inboxes_.push_back(setup_.stream.allocate(spec_.numel, spec_.dtype));
  }
  return inboxes_;
}

OpLabel RoundMessages::label(std::int64_t k) const {
  const bool sums = spec_.result == LaneResult::kSum;
  return {.what = sums ? "all-reduce" : "exchange", .bucket = spec_.bucket, .round = k};
}

OpContext RoundMessages::context(std::int64_t k, const Buffer& sent,
                                 std::span<const Buffer> used) const {
  std::shared_ptr<void> owner = sent.owner();
  for (const Buffer& inbox : inboxes_) owner = both(std::move(owner), inbox.owner());
  for (const Buffer& buffer : used) owner = both(std::move(owner), buffer.owner());
  return {.label = label(k),
          .owner = std::move(owner),
          .ready = setup_.stream.record(),
          .trace = OpTrace(setup_.timeline, sent.block().bytes())};
}

Request RoundMessages::exchange(const RankRound& round, ConstBlock send,
                                std::span<const Buffer> inboxes, OpContext context) const {
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

void RoundMessages::count(const RankRound& round, const BlockBytes& bytes) const {
  setup_.metrics.bytes_sent += bytes_sent(round, peers_.world().rank(), bytes);
}

}  // namespace gossamer
