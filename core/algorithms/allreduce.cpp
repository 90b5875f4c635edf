// All ranks average their gradients in every step, as PyTorch's DistributedDataParallel does (Li et
// al., "PyTorch Distributed", VLDB 2020). When the gradients of a bucket have arrived, they are
// packed into a flat block. The blocks are summed over all ranks while the backward pass goes on,
// and the updates follow at its end. With `delay: 1` an update uses the mean gradient of the step
// before, so that the sums have a whole step's time: x' = x - u(mean g of the step before).
//
// Under a codec the lanes send encoded gradients, and exact flags (core/coded_sum.hpp). The sum is
// still the same on all ranks, bit for bit.
//
// A parameter that no rank has used stays as it is. A parameter that some ranks have used is
// updated on all ranks, so that the models stay equal.

#include "core/bucket_lanes.hpp"
#include "core/packed_gradients.hpp"

namespace gossamer {
namespace {

struct AllReduceOptions {
  bool overlaps = true;
  bool delays = false;
  bool averages = true;
};

class AllReduce : public Algorithm {
 public:
  AllReduce(const AllReduceOptions& options, const AlgorithmSetup& setup)
      : options_(options),
        setup_(setup),
        lanes_(setup, LaneRounds::kSum, "gradients", PackedGradients::num_flags) {
    for (const Bucket& bucket : setup.buckets) packed_.add({bucket, setup.stream});
  }

  [[nodiscard]] bool updates_at_end() const override { return !options_.delays; }
  [[nodiscard]] double mean_factor() const override {
    return options_.averages ? 1.0 / setup_.lanes.num_ranks() : 1.0;
  }

  void gradients_ready(Bucket& bucket) override {
    if (options_.delays) return;
    packed_[bucket].pack(bucket);
    if (options_.overlaps) start(bucket);
  }
  void gradients_complete() override {
    if (!options_.delays && !options_.overlaps) start_all();
  }
  void final_gradients(Bucket& bucket) override {
    lanes_[bucket].wait();
    const Intake sum = lanes_[bucket].take();
    // The sum of the step before has arrived, so the block that was sent may be overwritten.
    if (options_.delays) packed_[bucket].pack(bucket);
    packed_[bucket].unpack(bucket, sum.inboxes.empty() ? ConstBlock() : sum.inboxes.front().block);
  }

  void after_update(Bucket& bucket) override {
    if (options_.delays && options_.overlaps) start(bucket);
  }
  void end_step() override {
    if (options_.delays && !options_.overlaps) start_all();
  }
  void drain() override { lanes_.drain(); }
  void forget() override { lanes_.forget(); }
  void visit(StateVisitor& visitor) override {
    if (!options_.delays) return;
    for (const Bucket& bucket : setup_.buckets) packed_[bucket].visit(visitor, bucket);
  }
  [[nodiscard]] bool is_own_gradient(const Bucket& bucket, std::int64_t entry) override {
    // The sent block is still the one of that step: packing begins only in the next step.
    return packed_[bucket].holds_nonfinite(bucket, entry);
  }

 private:
  void start(const Bucket& bucket) {
    lanes_[bucket].start(setup_.progress.round(), packed_[bucket].buffer());
  }
  void start_all() {
    for (const Bucket& bucket : setup_.buckets) start(bucket);
  }

  AllReduceOptions options_;
  AlgorithmSetup setup_;
  BucketLanes lanes_;
  PerBucket<PackedGradients> packed_;
};

}  // namespace

AlgorithmFactory read_allreduce(const Options& options) {
  const AllReduceOptions read{
      .overlaps = options.flag("overlap", true),
      .delays = options.integer("delay", {.fallback = 0, .min = 0, .max = 1}) == 1,
      .averages = options.flag("average", true)};
  return [read](const AlgorithmSetup& setup) { return std::make_unique<AllReduce>(read, setup); };
}

}  // namespace gossamer
