#pragma once
// The order of a step, for all that make steps: the pipeline, the simulation and the plan. The
// pipeline makes the parts of a step for each bucket as its gradients arrive (pipeline.hpp), and
// shares with_intake(). The others make whole steps in three phases (PhasedStep). Not thread
// safe. Errors: what the algorithm throws.

#include <concepts>
#include <span>
#include <utility>

#include "core/algorithms/algorithm.hpp"
#include "core/bucket/bucket.hpp"

namespace gossamer {

/// The update of a bucket with what it mixes in: calls before_update(). `update`: as
/// Bucket::update() takes it, without the intake. `unscaled()` returns the decision for gradients
/// that the algorithm has scaled itself.
template <std::invocable<> Unscaled>
BlockUpdate with_intake(Algorithm& algorithm, Bucket& bucket, BlockUpdate update,
                        const Unscaled& unscaled) {
  bucket.set_decision(update.decision);
  update.intake = algorithm.before_update(bucket);
  if (update.intake.gradients_are_scaled) update.decision = unscaled();
  return update;
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
  /// Last: the lanes of new parameters start, and the step ends.
  void send_parameters() {
    for (Bucket& bucket : buckets_) algorithm_.after_update(bucket);
    algorithm_.end_step();
    for (Bucket& bucket : buckets_) bucket.begin_step();
  }

 private:
  Algorithm& algorithm_;
  std::span<Bucket> buckets_;
};

}  // namespace gossamer
