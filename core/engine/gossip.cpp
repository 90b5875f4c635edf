// Decentralised training with overlap (Wang et al., ICLR 2025; Lian et al., 2017): when a bucket is
// ready, its exchange of the step before has to end, then one pass mixes and updates, then the next
// exchange starts, straight from the parameters into an inbox. It runs during the rest of the
// backward pass and the whole next forward pass, which only read the parameters.
//
// Exchanges start in bucket order on every rank, whatever order the gradients came in: otherwise
// two ranks could each wait for the bucket that the other one starts later.

#include <optional>
#include <stdexcept>
#include <utility>

#include "gossamer/core/base/text.hpp"
#include "gossamer/core/engine/algorithm.hpp"
#include "gossamer/core/engine/block_checksum.hpp"
#include "gossamer/core/engine/group_cache.hpp"

namespace gossamer {
namespace {

/// The exchange of one bucket between two of its updates.
struct Lane {
  Buffer inbox;
  Request request;
  /// Rounds started so far.
  std::int64_t num_rounds = 0;
  /// Something has been sent for, and the next update mixes it in with these weights.
  std::optional<MixWeights> arriving;
  BlockChecksum checksum;
};

MixWeights weights_of(const Edge& edge) {
  const double share = (1.0 - edge.weight) / (static_cast<double>(edge.ranks.size()) - 1.0);
  if (edge.ranks.size() == 2) return {edge.weight, share};
  // The inbox of a group holds the sum of all members, this rank included.
  return {edge.weight - share, share};
}

class Gossip : public Algorithm {
 public:
  explicit Gossip(AlgorithmContext& context)
      : context_(context),
        groups_(context.communicator, *context.topology),
        lanes_(context.buckets.size()) {}

  void on_ready(Bucket& bucket) override {
    if (!context_.policy.defers()) step(bucket);
  }

  void on_step_end() override {
    if (context_.policy.defers()) {
      context_.update_deferred(&context_.communicator, [this](Bucket& bucket) { step(bucket); });
    }
    if (next_launch_ != context_.buckets.size()) {
      throw std::logic_error(concat("bucket ", next_launch_, " was not updated in this step"));
    }
    next_launch_ = 0;
  }

  void drain() override {
    for (Bucket& bucket : context_.buckets) finish(bucket, lane_of(bucket));
  }

  void forget_arrived() override {
    for (Lane& lane : lanes_) lane.arriving.reset();
  }

 private:
  Lane& lane_of(const Bucket& bucket) { return lanes_[static_cast<std::size_t>(bucket.index())]; }

  /// Waits, mixes, updates, and starts the next exchange of this and all buckets it held up.
  void step(Bucket& bucket) {
    Lane& lane = lane_of(bucket);
    {
      // Waiting in drain() does not count: it is not a step's.
      const ScopedTimer timer(context_.metrics.wait_s);
      finish(bucket, lane);
    }
    Arrived arrived;
    if (lane.arriving) {
      arrived = {lane.inbox.block(), *lane.arriving};
      lane.arriving.reset();
    }
    context_.update(bucket, arrived);
    while (next_launch_ < context_.buckets.size() && context_.buckets[next_launch_].updated()) {
      launch(context_.buckets[next_launch_]);
      ++next_launch_;
    }
  }

  void finish(const Bucket& bucket, Lane& lane) {
    if (!lane.request.pending()) return;
    lane.request.wait();
    if (!lane.checksum.matches(bucket.parameters())) {
      throw std::logic_error(concat("the parameters of bucket ", bucket.index(),
                                    " were written while their exchange was in flight; drain() ",
                                    "before changing parameters"));
    }
  }

  void launch(const Bucket& bucket) {
    Lane& lane = lane_of(bucket);
    const std::int64_t k = lane.num_rounds++;
    const Edge edge = groups_.round(k).edge_of(groups_.world().rank());
    if (edge.ranks.size() == 1) return;
    if (lane.inbox.block().data == nullptr) {
      lane.inbox = Buffer(bucket.spec().numel, bucket.spec().dtype);
    }
    lane.arriving = weights_of(edge);
    lane.checksum.take(bucket.parameters());
    lane.request = start(bucket, edge, lane, {.bucket = bucket.index(), .round = k});
    context_.metrics.bytes_sent += exchange_bytes(bucket.spec().bytes(), edge.ranks.size());
  }

  Request start(const Bucket& bucket, const Edge& edge, const Lane& lane, const OpLabel& label) {
    // Both blocks stay alive until the worker is done with them, whatever becomes of this object.
    OpContext operation{label, both(bucket.owner(), lane.inbox.owner())};
    if (edge.ranks.size() > 2) {
      return groups_.group(edge).all_reduce_sum(bucket.parameters(), lane.inbox.block(),
                                                std::move(operation));
    }
    Communicator& world = groups_.world();
    const int peer = edge.ranks[0] == world.rank() ? edge.ranks[1] : edge.ranks[0];
    return world.exchange(peer, bucket.parameters(), lane.inbox.block(), std::move(operation));
  }

  AlgorithmContext& context_;
  GroupCache groups_;
  std::vector<Lane> lanes_;
  std::size_t next_launch_ = 0;
};

}  // namespace

std::unique_ptr<Algorithm> make_gossip(AlgorithmContext& context) {
  return std::make_unique<Gossip>(context);
}

}  // namespace gossamer
