// Gradient tracking (Nedic, Olshevsky and Shi, "Achieving Geometric Convergence for Distributed
// Optimization over Time-Varying Graphs", SIAM J. Optim. 2017; DIGing). Every rank keeps an
// estimate y of the mean gradient of all ranks. The optimizer uses y instead of the gradient:
//
//   y' = W y + g - g_old,   x' = W x - u(y')
//
// In every step the sum of y over all ranks equals the sum of their gradients. So on fixed data all
// ranks reach the common optimum; plain gossip misses it by a distance that grows with the learning
// rate. It is tracking (tracking.hpp) with beta = 0.

#include "core/algorithms/bucket_lanes.hpp"
#include "core/algorithms/experimental/tracking.hpp"
#include "optim/block_update.hpp"
#include "optim/convert.hpp"
#include "optim/tracker.hpp"

namespace gossamer {
namespace {

class Tracking : public Algorithm {
 public:
  Tracking(const TrackingOptions& options, const AlgorithmSetup& setup)
      : setup_(setup),
        tracker_(make_tracker(options.beta)),
        parameter_lanes_(setup),
        tracker_lanes_(setup, {.content = "trackers"}) {
    for (Bucket& bucket : setup.buckets) {
      const BucketSpec& spec = bucket.spec();
      slots_.add({.tracker = bucket.add_state("tracker"),
                  .tracked = bucket.add_state(options.tracked),
                  .widened = spec.has_master() ? setup.stream.allocate(spec.numel, spec.dtype)
                                               : Buffer()});
    }
  }

  Intake before_update(Bucket& bucket) override {
    const Slot& slot = slots_[bucket];
    tracker_lanes_[bucket].wait();
    parameter_lanes_[bucket].wait();
    Intake arrived = tracker_lanes_[bucket].take();
    // Before anything changes, for it may wait, and fail.
    Intake intake = parameter_lanes_[bucket].take();
    intake.gradients_are_scaled = true;
    if (bucket.spec().has_master()) widen_gradients(bucket, slot.widened.block());
    const Block tracker = slot.tracker.block();
    BlockUpdate update{.parameters = tracker,
                       .segments = bucket.segments(),
                       .decision = bucket.decision(),
                       .intake = std::move(arrived),
                       .simd = setup_.simd,
                       .pool = setup_.pool};
    update.states[0] = slot.tracked.block().data;
    enqueue_update(setup_.stream, *tracker_, std::move(update));
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      bucket.replace_gradient(entry, bucket.part(tracker, entry));
    }
    return intake;
  }

  void after_update(Bucket& bucket) override {
    const std::int64_t k = setup_.progress.round();
    parameter_lanes_[bucket].start(k, bucket.parameters());
    tracker_lanes_[bucket].start(k, slots_[bucket].tracker);
  }

 private:
  struct Slot {
    Buffer tracker;
    Buffer tracked;
    /// The gradients of the step in the master copies' type; only for buckets with master copies.
    Buffer widened;
  };

  /// Trackers have the type of the master copies, whatever type the model's gradients have.
  void widen_gradients(Bucket& bucket, const Block& widened) {
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      const ConstBlock gradient = bucket.gradient(entry);
      if (gradient.data == nullptr) continue;
      enqueue_convert(setup_.stream, bucket.part(widened, entry), gradient);
      bucket.replace_gradient(entry, bucket.part(widened, entry));
    }
  }

  AlgorithmSetup setup_;
  std::unique_ptr<Optimizer> tracker_;
  BucketLanes parameter_lanes_;
  BucketLanes tracker_lanes_;
  PerBucket<Slot> slots_;
};

}  // namespace

AlgorithmFactory make_tracking(const TrackingOptions& options) {
  return
      [options](const AlgorithmSetup& setup) { return std::make_unique<Tracking>(options, setup); };
}

AlgorithmFactory read_gradient_tracking(const Options& /*options*/) {
  return make_tracking({.tracked = "last_gradient"});
}

}  // namespace gossamer
