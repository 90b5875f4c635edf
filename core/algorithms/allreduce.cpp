// All ranks average their gradients in every step, as PyTorch's DistributedDataParallel does (Li et
// al., "PyTorch Distributed", VLDB 2020). When the gradients of a bucket have arrived, they are
// packed into a flat block. The blocks are summed over all ranks while the backward pass goes on,
// and the updates follow at its end. With `delay: 1` an update uses the mean gradient of the step
// before, so that the sums have a whole step's time: x' = x - u(mean g of the step before).
//
// Under a codec the lanes send encoded gradients, and exact flags (core/exchange/coded_sum.hpp).
// The sum is still the same on all ranks, bit for bit.
//
// `sends: momentum` is QAdam (Gan et al., "BAGUA", VLDB 2021; the two phases of 1-bit Adam, Tang et
// al., ICML 2021). During the warm-up of the optimizer qadam the ranks sum their gradients, and no
// codec rounds them. Afterwards every rank sends the momentum that it would have alone:
//
//   m_i = b1 m + (1 - b1) g_i,   m' = mean of R(m_i),   x' = x - lr m' / (sqrt(v) + eps)
//
// All ranks know m, so the mean momentum tells the mean gradient: (m' - b1 m) / (1 - b1). The
// optimizer gets this gradient, and makes m' of it. So clipping, scaling, weight decay and skipped
// steps are those of sums of gradients. QAdam has no error feedback, and 1-bit Adam has.
//
// A parameter that no rank has used stays as it is. A parameter that some ranks have used is
// updated on all ranks, so that the models stay equal.

#include <optional>

#include "base/error.hpp"
#include "core/algorithms/algorithm_options.hpp"
#include "core/algorithms/bucket_lanes.hpp"
#include "core/bucket/packed_gradients.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

struct AllReduceOptions {
  bool overlaps = true;
  bool delays = false;
  bool averages = true;
  bool sends_momentum = false;
};

/// What the ranks send after the warm-up in place of their gradients, and its way back.
class Momentum {
 public:
  /// The optimizer must have a second moment that stands still after a warm-up.
  explicit Momentum(const AlgorithmSetup& setup) : setup_(setup) {
    for (const Bucket& bucket : setup.buckets) {
      moments_ = bucket.optimizer().frozen_moments().value();
      gradients_.add(
          setup.stream.allocate(bucket.spec().numel + bucket.num_entries(), bucket.spec().dtype));
    }
  }

  /// True: the warm-up is over. The same on all ranks, because they skip steps together.
  [[nodiscard]] bool is_sent() const { return setup_.progress.num_updates() >= moments_.warmup; }
  /// g <- b1 m + (1 - b1) g. Flags behind the gradients stay.
  void encode(const Bucket& bucket, const Block& packed) {
    mix_with_momentum(bucket, packed, 1.0 - moments_.beta1, moments_.beta1);
  }
  /// The sum of the gradients, from the sum of the momentum of all ranks. Valid until the next call
  /// for this bucket.
  ConstBlock decode(const Bucket& bucket, const ConstBlock& sum) {
    const Block gradients = gradients_[bucket].block();
    setup_.stream.copy(gradients, sum);
    const double share = 1.0 - moments_.beta1;
    mix_with_momentum(bucket, gradients, 1.0 / share,
                      -setup_.lanes.num_ranks() * moments_.beta1 / share);
    return gradients;
  }

 private:
  /// x <- keep x + weight m.
  void mix_with_momentum(const Bucket& bucket, const Block& x, double keep, double weight) {
    enqueue_mix(setup_.stream, part_of(x, 0, bucket.spec().numel), keep,
                {{bucket.state("m").block(), weight}}, {}, setup_.simd);
  }

  AlgorithmSetup setup_;
  FrozenMoments moments_;
  PerBucket<Buffer> gradients_;
};

class AllReduce : public Algorithm {
 public:
  AllReduce(const AllReduceOptions& options, const AlgorithmSetup& setup)
      : options_(options),
        setup_(setup),
        lanes_(setup,
               {.members = LaneMembers::kAll, .result = LaneResult::kSum, .content = "gradients"},
               PackedGradients::num_flags) {
    for (const Bucket& bucket : setup.buckets) packed_.add({bucket, setup.stream});
    if (!options.sends_momentum) return;
    momentum_.emplace(setup);
    // No codec encodes anything: num_coded is 0.
    warmup_lanes_ = BucketLanes(setup, [](const Bucket& bucket) {
      return LaneSpec{.members = LaneMembers::kAll,
                      .result = LaneResult::kSum,
                      .bucket = bucket.index(),
                      .numel = bucket.spec().numel + bucket.num_entries(),
                      .dtype = bucket.spec().dtype,
                      .content = "gradients"};
    });
  }

  [[nodiscard]] bool updates_at_end() const override { return !options_.delays; }
  [[nodiscard]] double mean_factor() const override {
    return options_.averages ? 1.0 / setup_.lanes.num_ranks() : 1.0;
  }

  void gradients_ready(Bucket& bucket) override {
    if (options_.delays) return;
    packed_[bucket].pack(bucket);
    if (sends_momentum()) momentum_->encode(bucket, packed_[bucket].buffer().block());
    const bool is_last = bucket.index() + 1 == std::ssize(setup_.buckets);
    if (options_.overlaps) {
      start(bucket);
    } else if (is_last) {
      start_all();
    }
  }
  void final_gradients(Bucket& bucket) override {
    Lane& lane = lanes()[bucket];
    lane.wait();
    const Intake arrived = lane.take();
    ConstBlock sum = arrived.inboxes.empty() ? ConstBlock() : arrived.inboxes.front().block;
    if (sends_momentum() && sum.data != nullptr) sum = momentum_->decode(bucket, sum);
    // The sum of the step before has arrived, so the block that was sent may be overwritten.
    if (options_.delays) packed_[bucket].pack(bucket);
    packed_[bucket].unpack(bucket, sum);
  }

  void after_update(Bucket& bucket) override {
    if (options_.delays && options_.overlaps) start(bucket);
  }
  void end_step() override {
    if (options_.delays && !options_.overlaps) start_all();
  }
  void visit(StateVisitor& visitor) override {
    if (!options_.delays) return;
    for (const Bucket& bucket : setup_.buckets) packed_[bucket].visit(visitor, bucket);
  }

 private:
  [[nodiscard]] bool sends_momentum() const { return momentum_ && momentum_->is_sent(); }
  /// The lanes of this step.
  BucketLanes& lanes() { return momentum_ && !momentum_->is_sent() ? warmup_lanes_ : lanes_; }
  void start(const Bucket& bucket) {
    lanes()[bucket].start(setup_.progress.round(), packed_[bucket].buffer());
  }
  void start_all() {
    for (const Bucket& bucket : setup_.buckets) start(bucket);
  }

  AllReduceOptions options_;
  AlgorithmSetup setup_;
  BucketLanes lanes_;
  PerBucket<PackedGradients> packed_;
  /// `sends: momentum`.
  std::optional<Momentum> momentum_;
  /// The same sums as in lanes_, never encoded.
  BucketLanes warmup_lanes_;
};

}  // namespace

AlgorithmFactory read_allreduce(const Options& options) {
  const AllReduceOptions read{.overlaps = options.read(allreduce::kOverlap),
                              .delays = options.read(allreduce::kDelay) == 1,
                              .averages = options.read(allreduce::kAverage),
                              .sends_momentum = options.read(allreduce::kSends) == "momentum"};
  if (read.delays && read.sends_momentum) {
    options.fail("sends",
                 "momentum one step late is not possible, allowed with delay 1: gradients");
  }
  const auto make = [read](const AlgorithmSetup& setup) {
    return std::make_unique<AllReduce>(read, setup);
  };
  return {make, [read](const AlgorithmSetting& setting) -> std::string {
            if (read.delays && setting.is_elastic) {
              return "algorithm.delay: 1 cannot go on without a rank that dies, because the sums "
                     "of the step before are lost with it; take delay 0";
            }
            if (!read.sends_momentum) return "";
            if (setting.optimizer == nullptr || setting.optimizer->frozen_moments()) return "";
            return "algorithm.sends: momentum needs an optimizer whose second moment stands still "
                   "after a warm-up; take the optimizer qadam, or send gradients";
          }};
}

}  // namespace gossamer
