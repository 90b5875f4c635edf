// All ranks average their gradients in every step, as PyTorch's DistributedDataParallel does (Li et
// al., "PyTorch Distributed", VLDB 2020). When the gradients of a bucket have arrived, they are
// packed into a flat block. The blocks are summed over all ranks while the backward pass goes on,
// and the updates follow at its end. With `delay: 1` an update uses the mean gradient of the step
// before, so that the sums have a whole step's time: x' = x - u(mean g of the step before).
//
// After its gradients a block has one flag per parameter: 1 if this rank has a gradient. A
// parameter that no rank has used stays as it is. A parameter that some ranks have used is updated
// on all ranks, so that the models stay equal.

#include "base/text.hpp"
#include "core/bucket_lanes.hpp"
#include "core/gradient_policy.hpp"
#include "optim/convert.hpp"

namespace gossamer {
namespace {

struct AllReduceOptions {
  bool overlaps = true;
  bool delays = false;
  bool averages = true;
};

double flag_of(const Block& flags, std::int64_t entry) {
  const auto place = static_cast<std::size_t>(entry);
  return flags.dtype == DType::kFloat64 ? flags.as<double>()[place]
                                        : static_cast<double>(flags.as<float>()[place]);
}

void set_flag(const Block& flags, std::int64_t entry, bool value) {
  const auto place = static_cast<std::size_t>(entry);
  if (flags.dtype == DType::kFloat64) {
    flags.as<double>()[place] = value ? 1.0 : 0.0;
  } else {
    flags.as<float>()[place] = value ? 1.0F : 0.0F;
  }
}

class AllReduce : public Algorithm {
 public:
  AllReduce(const AllReduceOptions& options, const AlgorithmSetup& setup)
      : options_(options),
        setup_(setup),
        lanes_(setup, LaneRounds::kSum, "gradients",
               [](const Bucket& bucket) { return bucket.num_entries(); }) {
    for (const Bucket& bucket : setup.buckets) {
      const DType dtype = bucket.spec().dtype;
      const std::int64_t num_flags = bucket.num_entries();
      slots_.add({.sent = setup.stream.allocate(bucket.spec().numel + num_flags, dtype),
                  .own_flags = setup.stream.allocate_host(num_flags, dtype),
                  .flags = setup.stream.allocate_host(num_flags, dtype)});
    }
  }

  [[nodiscard]] bool updates_at_end() const override { return !options_.delays; }
  [[nodiscard]] double mean_factor() const override {
    return options_.averages ? 1.0 / setup_.lanes.num_ranks() : 1.0;
  }

  void gradients_ready(Bucket& bucket) override {
    if (options_.delays) return;
    pack(bucket);
    if (options_.overlaps) start(bucket);
  }

  void gradients_complete() override {
    if (!options_.delays && !options_.overlaps) start_all();
  }

  void final_gradients(Bucket& bucket) override {
    lanes_[bucket].wait();
    const Intake sum = lanes_[bucket].take();
    const bool arrived = !sum.inboxes.empty();
    const ConstBlock block = arrived ? sum.inboxes.front().block : ConstBlock();
    const Block flags = slots_[bucket].flags.block();
    if (arrived) {
      setup_.stream.copy(flags, flags_behind(bucket, block));
      setup_.stream.synchronize();
    }
    // The sum of the step before has arrived, so the block that was sent may be overwritten.
    if (options_.delays) pack(bucket);
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      const bool used = arrived && flag_of(flags, entry) > 0.0;
      bucket.replace_gradient(entry, used ? bucket.part(block, entry) : ConstBlock());
    }
  }

  void after_update(Bucket& bucket) override {
    if (options_.delays && options_.overlaps) start(bucket);
  }
  void end_step() override {
    if (options_.delays && !options_.overlaps) start_all();
  }
  void drain() override { lanes_.wait(); }
  void forget() override { lanes_.forget(); }

  void visit(StateVisitor& visitor) override {
    if (!options_.delays) return;
    for (Bucket& bucket : setup_.buckets) {
      const Block sent = slots_[bucket].sent.block();
      const Block flags = flags_behind(bucket, sent);
      for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
        const std::string name = concat(bucket.name(entry), "/sent_gradient");
        visit_block(visitor, setup_.stream, name, bucket.part(sent, entry));
        visit_block(visitor, setup_.stream, concat(name, "_flag"), part_of(flags, entry, 1));
      }
    }
  }

  [[nodiscard]] bool is_own_gradient(const Bucket& bucket, std::int64_t entry) override {
    // The sent block is still the one of that step: packing begins only in the next step.
    return holds_nonfinite(setup_.stream, bucket.part(slots_[bucket].sent.block(), entry));
  }

 private:
  struct Slot {
    Buffer sent;
    Buffer own_flags;
    Buffer flags;
  };

  template <class AnyBlock>
  static AnyBlock flags_behind(const Bucket& bucket, const AnyBlock& block) {
    return part_of(block, bucket.spec().numel, bucket.num_entries());
  }

  void start(const Bucket& bucket) {
    lanes_[bucket].start(setup_.progress.num_steps, slots_[bucket].sent);
  }
  void start_all() {
    for (const Bucket& bucket : setup_.buckets) start(bucket);
  }

  void pack(const Bucket& bucket) {
    const Slot& slot = slots_[bucket];
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      const ConstBlock gradient = bucket.gradient(entry);
      const Block target = bucket.part(slot.sent.block(), entry);
      set_flag(slot.own_flags.block(), entry, gradient.data != nullptr);
      if (gradient.data == nullptr) {
        setup_.stream.zero(target);
      } else {
        enqueue_convert(setup_.stream, target, gradient);
      }
    }
    setup_.stream.copy(flags_behind(bucket, slot.sent.block()), slot.own_flags.block());
  }

  AllReduceOptions options_;
  AlgorithmSetup setup_;
  BucketLanes lanes_;
  PerBucket<Slot> slots_;
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
