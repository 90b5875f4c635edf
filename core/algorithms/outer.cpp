// Every rank trains alone, and every few steps all ranks average their models. The average does not
// become the model at once. Instead it moves an anchor a, which is the model after the last
// average, with a momentum of its own. The moved anchor then becomes the model of all ranks.
//
//   slowmo   u = momentum u + (a - mean x) / lr,   a = a - outer_lr lr u
//            (Wang, Tantia, Ballas and Rabbat, "SlowMo", ICLR 2020)
//   diloco   D = a - mean x,   m = momentum m + D,   a = a - outer_lr (D + momentum m)
//            (Douillard et al., "DiLoCo", 2023; Nesterov's momentum on D)
//
// lr is the learning rate of the step whose models are averaged. With momentum 0 and an outer
// learning rate of 1 both kinds are local SGD. The average travels during the next forward and
// backward pass. With `streaming: true` the buckets take turns, which spreads the traffic of an
// average over a whole cycle (Douillard et al., "Streaming DiLoCo", 2025).

#include <algorithm>
#include <utility>

#include "core/algorithms/algorithm_options.hpp"
#include "core/bucket_lanes.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

struct OuterOptions {
  std::int64_t every = 8;
  bool is_slowmo = true;
  double lr = 1.0;
  double momentum = 0.5;
  bool streams = false;
};

class Outer : public Algorithm {
 public:
  Outer(const OuterOptions& options, const AlgorithmSetup& setup)
      : options_(options),
        setup_(setup),
        lanes_(setup, {.members = LaneMembers::kAll, .result = LaneResult::kMean}) {
    for (Bucket& bucket : setup.buckets) {
      slots_.add(
          {.anchor = bucket.add_state("anchor"), .momentum = bucket.add_state("outer_momentum")});
    }
    forget();
  }

  Intake before_update(Bucket& bucket) override {
    lanes_[bucket].wait();
    const Intake mean = lanes_[bucket].take();
    if (std::exchange(slots_[bucket].averages, false)) move_anchor(bucket, mean);
    return {};
  }

  void after_update(Bucket& bucket) override {
    const std::int64_t k = setup_.progress.round();
    const auto num_buckets = static_cast<std::int64_t>(setup_.buckets.size());
    const std::int64_t turn = options_.streams ? bucket.index() * options_.every / num_buckets : 0;
    if ((k + 1 + turn) % options_.every != 0) return;
    lanes_[bucket].start(k, bucket.parameters());
    slots_[bucket].averages = true;
  }

  void forget() override {
    for (const Bucket& bucket : setup_.buckets) {
      slots_[bucket].averages = false;
      setup_.stream.copy(slots_[bucket].anchor.block(), bucket.parameters().block());
    }
  }

 private:
  struct Slot {
    Buffer anchor;
    Buffer momentum;
    /// An average of the bucket is under way, or has arrived.
    bool averages = false;
  };

  /// x <- keep * x + sum of weight * inbox. Leaves out inboxes of weight 0, so that a plain average
  /// stays exact.
  void mix(const Block& x, double keep, const std::vector<Inbox>& inboxes) {
    std::vector<Inbox> used;
    for (const Inbox& inbox : inboxes) {
      if (inbox.weight != 0.0) used.push_back(inbox);
    }
    enqueue_mix(setup_.stream, x, keep, std::move(used), {}, setup_.simd);
  }

  void move_anchor(Bucket& bucket, const Intake& mean) {
    const Block x = bucket.parameters().block();
    const Block anchor = slots_[bucket].anchor.block();
    const Block momentum = slots_[bucket].momentum.block();
    const double b = options_.momentum;
    mix(x, mean.keep, {mean.inboxes.begin(), mean.inboxes.end()});
    const double inner_lr =
        setup_.schedule.lr(std::max<std::int64_t>(0, setup_.progress.num_updates() - 1));
    if (!options_.is_slowmo) {
      mix(momentum, b, {{anchor, 1.0}, {x, -1.0}});
      mix(x, options_.lr, {{anchor, 1.0 - options_.lr}, {momentum, -options_.lr * b}});
    } else if (const double rate = options_.lr * inner_lr; rate > kLeastRate) {
      mix(x, options_.lr, {{anchor, 1.0 - options_.lr}, {momentum, -rate * b}});
      mix(momentum, 0.0, {{anchor, 1.0 / rate}, {x, -1.0 / rate}});
    }
    setup_.stream.copy(anchor, x);
    bucket.write_rounded();
  }

  /// SlowMo divides by outer_lr * lr. Unless this product is above kLeastRate, the average itself
  /// becomes the anchor, and the momentum stays as it is.
  static constexpr double kLeastRate = 1e-12;

  OuterOptions options_;
  AlgorithmSetup setup_;
  BucketLanes lanes_;
  PerBucket<Slot> slots_;
};

}  // namespace

AlgorithmFactory read_outer(const Options& options) {
  OuterOptions read;
  read.is_slowmo = options.read(outer::kKind) == "slowmo";
  read.every = options.read(outer::kEvery);
  read.lr = read.is_slowmo ? options.read(outer::kLr) : options.read(outer::kLr, 0.7);
  read.momentum =
      read.is_slowmo ? options.read(outer::kMomentum) : options.read(outer::kMomentum, 0.9);
  read.streams = options.read(outer::kStreaming);
  return [read](const AlgorithmSetup& setup) { return std::make_unique<Outer>(read, setup); };
}

}  // namespace gossamer
