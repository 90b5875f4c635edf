#include "core/lane.hpp"

#include <stdexcept>
#include <utility>

#include "base/text.hpp"

namespace gossamer {
namespace {

bool leads(const Communicator& world, int node_size) { return world.rank() % node_size == 0; }

}  // namespace

void Lane::reserve(const Bucket& bucket, std::size_t count) {
  while (buffers_.size() < count) {
    buffers_.push_back(stream_->allocate(bucket.spec().numel, bucket.spec().dtype));
  }
}

OpContext Lane::context_of(const Bucket& bucket, std::int64_t k) const {
  // All blocks stay alive until the worker is done with them, whatever becomes of this object.
  std::shared_ptr<void> owner = bucket.model_memory().parameters.owner();
  for (const Buffer& buffer : buffers_) owner = both(std::move(owner), buffer.owner());
  return {.label = {.bucket = bucket.index(), .round = k},
          .owner = std::move(owner),
          .ready = stream_->record()};
}

Request Lane::exchange(Peers& groups, const RankRound& round, ConstBlock send, std::size_t first,
                       OpContext context) {
  const auto world_rank = [&round](int place) { return place * round.node_size; };
  switch (round.kind) {
    case RankRound::Kind::kIdle:
      break;
    case RankRound::Kind::kPair:
      return groups.world().exchange(world_rank(round.send_to.front()), send,
                                     buffers_[first].block(), std::move(context));
    case RankRound::Kind::kGroup:
      return groups.group(round).all_reduce_sum(send, buffers_[first].block(), std::move(context));
    case RankRound::Kind::kNeighbors: {
      std::vector<int> peers = round.send_to;
      for (int& peer : peers) peer = world_rank(peer);
      std::vector<Incoming> incoming;
      for (std::size_t i = 0; i < round.receive_from.size(); ++i) {
        incoming.push_back({world_rank(round.receive_from[i]), buffers_[first + i].block()});
      }
      return groups.world().exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                                    std::move(context));
    }
  }
  return {};
}

Request Lane::start_two_levels(Peers& groups, const RankRound& round, const Bucket& bucket,
                               std::int64_t k, SimdPath simd) {
  const double mean = 1.0 / round.node_size;
  reserve(bucket, 1);
  const Block inbox = buffers_.front().block();
  Request sum = groups.node_sum(round.node_size)
                    .all_reduce_sum(bucket.parameters(), inbox, context_of(bucket, k));
  keep_ = 0.0;
  arriving_ = {{inbox, mean}};
  if (round.kind == RankRound::Kind::kIdle) return sum;

  const bool leader = leads(groups.world(), round.node_size);
  Request between;
  if (leader) {
    reserve(bucket, 1 + round.take.size());
    OpContext context = context_of(bucket, k);
    context.after = sum.state();
    between = exchange(groups, round, inbox, 1, std::move(context));
  }
  if (round.take.empty()) {
    // Nobody is heard: the sum is all there is. The leader's must stay until it is sent.
    arriving_ = {{inbox, round.keep * mean}};
    return leader ? std::move(between) : std::move(sum);
  }

  // The leader's inbox becomes what the node mixes to; the others get a copy.
  arriving_ = {{inbox, 1.0}};
  OpContext context = context_of(bucket, k);
  context.after = leader ? between.state() : sum.state();
  if (leader) {
    std::vector<Inbox> heard;
    for (std::size_t i = 0; i < round.take.size(); ++i) {
      heard.push_back({buffers_[1 + i].block(), round.take[i] * mean});
    }
    context.prepare = [stream = groups.world().stream(), inbox, keep = round.keep * mean,
                       heard = std::move(heard), simd, kept = context.owner]() -> EventPtr {
      enqueue_mix(*stream, inbox, keep, heard, simd);
      // Should the operation fail, the stream may still be at it when its owner goes.
      stream->keep(kept);
      return stream->record();
    };
  }
  return groups.node_result(round.node_size).broadcast(inbox, 0, std::move(context));
}

double Lane::start(Peers& groups, const Bucket& bucket, std::int64_t k, SimdPath simd) {
  const RankRound& round = groups.round(k);
  update_scale_ = round.update_scale;
  arriving_.clear();
  keep_ = round.keep;
  if (round.kind == RankRound::Kind::kIdle && round.node_size == 1) return 0.0;
  if (stream_->on_host()) {
    stream_->run([sum = checksum_, block = bucket.parameters()] { sum->take(block); });
  }
  if (round.node_size > 1) {
    request_ = start_two_levels(groups, round, bucket, k, simd);
  } else {
    reserve(bucket, round.take.size());
    for (std::size_t i = 0; i < round.take.size(); ++i) {
      arriving_.push_back({buffers_[i].block(), round.take[i]});
    }
    request_ = exchange(groups, round, bucket.parameters(), 0, context_of(bucket, k));
  }
  has_arrived_ = true;
  return bytes_sent(round, groups.world().rank(), bucket.spec().bytes());
}

void Lane::wait(const Bucket& bucket) {
  if (!request_.pending()) return;
  request_.wait_on(*stream_);
  if (!stream_->on_host()) return;
  stream_->run([sum = checksum_, block = bucket.parameters(), index = bucket.index()] {
    if (sum->matches(block)) return;
    throw std::logic_error(concat("the parameters of bucket ", index,
                                  " were written while their exchange was in flight; drain() ",
                                  "before changing parameters"));
  });
}

Arrived Lane::take() {
  if (!std::exchange(has_arrived_, false)) return {.update_scale = update_scale_};
  return {keep_, arriving_, update_scale_};
}

}  // namespace gossamer
