#include "core/exchange/round_messages.hpp"

#include <algorithm>
#include <utility>

#include "base/worker_pool.hpp"

namespace gossamer {
namespace {

// A block goes in at most so many parts, of at least so many bytes. One more part saves an eighth
// of what is left after the last one, and costs the worker one more operation.
constexpr std::int64_t kMostParts = 8;
constexpr std::int64_t kLeastPartBytes = std::int64_t{1} << 20;
// Elements. Parts begin at a multiple of this, so that every inbox's part is as aligned as it is.
constexpr std::int64_t kPartGrain = 1024;

}  // namespace

Request whole(std::vector<PartUnderWay> parts) {
  std::vector<Request> requests;
  for (PartUnderWay& part : parts) requests.push_back(std::move(part.request));
  return all_of(std::move(requests));
}

RoundMessages::RoundMessages(const LaneSetup& setup, Peers& peers, const LaneSpec& spec,
                             bool encodes)
    : setup_(setup), peers_(peers), spec_(spec) {
  if (setup.stream.on_host()) return;
  // Now, because later an allocator may have to free memory on a GPU, which waits for the device.
  const RoundNeeds needs = encodes ? peers.most_needs().sums : peers.most_needs().all;
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

std::vector<PartUnderWay> RoundMessages::exchange_in_parts(const RankRound& round, ConstBlock send,
                                                           std::span<const Buffer> inboxes,
                                                           const OpContext& context) const {
  const bool may_part = round.kind != RankRound::Kind::kGroup && setup_.stream.on_host();
  const int num_parts = may_part ? static_cast<int>(std::clamp<std::int64_t>(
                                       send.bytes() / kLeastPartBytes, 1, kMostParts))
                                 : 1;
  std::vector<PartUnderWay> parts;
  for (int i = 0; i < num_parts; ++i) {
    const PartRange range = part_range(send.numel, num_parts, i, kPartGrain);
    const std::int64_t numel = range.last - range.first;
    std::vector<Buffer> into;
    for (const Buffer& inbox : inboxes) {
      into.emplace_back(inbox.owner(), part_of(inbox.block(), range.first, numel));
    }
    parts.push_back(
        {range.last, exchange(round, part_of(send, range.first, numel), into, context)});
  }
  return parts;
}

void RoundMessages::count(const RankRound& round, const BlockBytes& bytes) const {
  setup_.metrics.bytes_sent += bytes_sent(round, peers_.world().rank(), bytes);
}

}  // namespace gossamer
