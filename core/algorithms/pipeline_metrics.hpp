#pragma once
// Counters of training: the parts of a step's time, the bytes that the step sends, and the progress
// of training.

#include <cstdint>

#include "core/exchange/lane_metrics.hpp"

namespace gossamer {

/// Sums over all steps so far. Nothing in training depends on them.
struct PipelineMetrics : LaneMetrics {
  /// Seconds spent on inspecting gradients, mixing and updating.
  double update_s = 0.0;
  /// Seconds spent in the whole pipeline: waiting, updates, the start of exchanges, and the rest.
  double pipeline_s = 0.0;

  PipelineMetrics& operator+=(const PipelineMetrics& other) {
    wait_s += other.wait_s;
    update_s += other.update_s;
    pipeline_s += other.pipeline_s;
    bytes_sent += other.bytes_sent;
    num_wide_differences += other.num_wide_differences;
    return *this;
  }
};

/// How far training has come. A checkpoint holds it. The learning rate follows num_updates().
struct Progress {
  /// More than any run makes.
  static constexpr std::int64_t kMostSteps = 1'000'000'000'000'000;

  std::int64_t num_steps = 0;
  /// Steps that mixed but did not update, because a gradient was not finite.
  std::int64_t num_skipped = 0;
  /// The number of steps before the present algorithm began.
  std::int64_t first_step = 0;

  [[nodiscard]] std::int64_t num_updates() const { return num_steps - num_skipped; }
  /// The number of the next exchange: every algorithm of a run counts its rounds from 0.
  [[nodiscard]] std::int64_t round() const { return num_steps - first_step; }
};

/// Adds the seconds between its construction and destruction to update_s, minus the seconds that
/// lanes add to wait_s in that time.
class UpdateTimer {
 public:
  explicit UpdateTimer(PipelineMetrics& metrics)
      : metrics_(metrics), waited_before_(metrics.wait_s), timer_(metrics.update_s) {}
  ~UpdateTimer() { metrics_.update_s -= metrics_.wait_s - waited_before_; }
  UpdateTimer(const UpdateTimer&) = delete;
  UpdateTimer& operator=(const UpdateTimer&) = delete;

 private:
  PipelineMetrics& metrics_;
  double waited_before_;
  ScopedTimer timer_;
};

}  // namespace gossamer
