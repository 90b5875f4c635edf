// Decentralised training with overlap (Wang et al., ICLR 2025; Lian et al., 2017): when a bucket is
// ready, its exchange of the step before has to end, then one pass mixes and updates, then the next
// exchange starts, straight from the parameters into an inbox. It runs during the rest of the
// backward pass and the whole next forward pass, which only read the parameters.
//
// Exchanges start in bucket order on every rank, whatever order the gradients came in: otherwise
// two ranks could each wait for the bucket that the other one starts later.

#include <stdexcept>
#include <utility>

#include "base/text.hpp"
#include "core/algorithm.hpp"
#include "core/lane.hpp"

namespace gossamer {
namespace {

class Gossip : public Algorithm {
 public:
  explicit Gossip(AlgorithmContext& context)
      : context_(context), groups_(context.communicator, *context.topology) {
    for (std::size_t b = 0; b < context.buckets.size(); ++b)
      exchanges_.emplace_back(context.stream);
  }

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
    ++num_steps_;
  }

  void drain() override {
    for (const Bucket& bucket : context_.buckets) exchange_of(bucket).wait(bucket);
  }

  void forget_arrived() override {
    for (Lane& exchange : exchanges_) exchange.forget();
  }

 private:
  Lane& exchange_of(const Bucket& bucket) {
    return exchanges_[static_cast<std::size_t>(bucket.index())];
  }

  /// Waits, mixes, updates, and starts the next exchange of this and all buckets it held up.
  void step(Bucket& bucket) {
    Lane& exchange = exchange_of(bucket);
    {
      // Waiting in drain() does not count: it is not a step's.
      const ScopedTimer timer(context_.metrics.wait_s);
      exchange.wait(bucket);
    }
    context_.update(bucket, exchange.take());
    while (next_launch_ < context_.buckets.size() && context_.buckets[next_launch_].updated()) {
      const Bucket& next = context_.buckets[next_launch_];
      // Every bucket goes through every round once, and all of a step through the same.
      context_.metrics.bytes_sent +=
          exchange_of(next).start(groups_, next, num_steps_, context_.simd);
      ++next_launch_;
    }
  }

  AlgorithmContext& context_;
  Peers groups_;
  std::vector<Lane> exchanges_;
  std::int64_t num_steps_ = 0;
  std::size_t next_launch_ = 0;
};

}  // namespace

std::unique_ptr<Algorithm> make_gossip(AlgorithmContext& context) {
  return std::make_unique<Gossip>(context);
}

}  // namespace gossamer
