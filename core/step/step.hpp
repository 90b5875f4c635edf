#pragma once
// The order of a step, for all that make steps: the pipeline, the simulation and the plan. The
// pipeline makes the parts of a step for each bucket as its gradients arrive (pipeline.hpp), and
// shares with_intake(). The others make whole steps in four phases (PhasedStep). Not thread
// safe. Errors: what the algorithm throws.

#include <concepts>
#include <span>
#include <utility>

#include "core/algorithms/algorithm.hpp"
#include "core/bucket/bucket.hpp"
#include "optim/block_update.hpp"

namespace gossamer {

/// The update of a bucket with what it mixes in: calls before_update(), unless the algorithm mixes
/// at the end of steps. `update`: as
/// Bucket::update() takes it, without the intake. `unscaled()` returns the decision for gradients
/// that the algorithm has scaled itself.
template <std::invocable<> Unscaled>
BlockUpdate with_intake(Algorithm& algorithm, Bucket& bucket, BlockUpdate update,
                        const Unscaled& unscaled) {
  bucket.set_decision(update.decision);
  if (!algorithm.mixes_at_end()) update.intake = algorithm.before_update(bucket);
  if (update.intake.gradients_are_scaled) update.decision = unscaled();
  return update;
}

/// Mixes the parameters of a bucket after a step of an algorithm with mixes_at_end(), as work on
/// the stream.
inline void mix_at_end(Algorithm& algorithm, Bucket& bucket, Stream& stream, SimdPath simd) {
  Intake intake = algorithm.before_update(bucket);
  if (intake.inboxes.empty()) return;
  enqueue_mix(stream, bucket.parameters().block(), intake.keep, std::move(intake.inboxes),
              intake.exchange, simd);
  bucket.write_rounded();
}

/// The step of a rank whose gradients are all there, and are neither clipped nor inspected. What
/// lanes carry may travel between two phases.
class PhasedStep {
 public:
  /// Both must outlive the step. The buckets hold the gradients (Bucket::offer()).
  PhasedStep(Algorithm& algorithm, std::span<Bucket> buckets)
      : algorithm_(algorithm), buckets_(buckets) {}

  /// First: the lanes of gradients start.
  void send_gradients() {
    for (Bucket& bucket : buckets_) algorithm_.gradients_ready(bucket);
  }
  /// Mixes and updates the buckets. Call it after the gradients are ready.
  void update(double lr) {
    for (Bucket& bucket : buckets_) algorithm_.final_gradients(bucket);
    const GradientDecision decision{.factor = algorithm_.mean_factor()};
    for (Bucket& bucket : buckets_) {
      bucket.update(with_intake(algorithm_, bucket, {.lr = lr, .decision = &decision},
                                []() -> const GradientDecision* { return nullptr; }));
      bucket.set_decision(nullptr);
    }
  }
  /// Third: the lanes of new parameters start, and the step ends.
  void send_parameters() {
    for (Bucket& bucket : buckets_) algorithm_.after_update(bucket);
    algorithm_.end_step();
    for (Bucket& bucket : buckets_) bucket.begin_step();
  }

  /// Last, when the ranks have counted the step: mixes what has arrived, if the algorithm does so
  /// at the end of steps.
  void mix(Stream& stream) {
    if (!algorithm_.mixes_at_end()) return;
    for (Bucket& bucket : buckets_) mix_at_end(algorithm_, bucket, stream, best_simd_path());
  }

 private:
  Algorithm& algorithm_;
  std::span<Bucket> buckets_;
};

}  // namespace gossamer
