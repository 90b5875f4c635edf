#pragma once
// Finds the size of buckets with which training steps are shortest, by trying some sizes. Training
// goes on meanwhile. Every size has two trials: all sizes in their order, then all in reverse, so
// that a slow drift of the machine favours no size. The first steps of a trial do not count.
//
// Protocol: train with buckets of size(). Call end_step() after every step, and skip_step() if more
// than the step itself lies between two calls. All ranks make the same calls, so they are always at
// the same trial. When is_over(), compare the means of step_s() over all ranks, so that all ranks
// choose the same size.
//
// Not thread safe.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gossamer {

class BucketTuner {
 public:
  /// Steps at the beginning of a trial that do not count.
  static constexpr std::int64_t kWarmup = 2;

  struct Config {
    /// Bytes. At least one, all different.
    std::vector<std::int64_t> sizes = {};
    /// Steps before the first trial.
    std::int64_t num_before = 0;
    /// Steps of a trial that count.
    std::int64_t num_measured = 8;
  };
  /// Throws std::logic_error if there is no size.
  explicit BucketTuner(Config config);

  /// The size of buckets in bytes for the next step. After the last trial: the size that was
  /// chosen.
  [[nodiscard]] std::int64_t size() const;
  /// Tells that a step has ended. `now_s` is the time in seconds on any steady clock. Returns true
  /// if a trial is over, so that size() may be another one now.
  bool end_step(double now_s);
  /// Makes the step under way not count, because an evaluation or a checkpoint takes part of its
  /// time.
  void skip_step() { skips_ = true; }
  [[nodiscard]] bool is_over() const;
  /// The sizes, in the order given.
  [[nodiscard]] const std::vector<std::int64_t>& sizes() const { return config_.sizes; }
  /// The mean seconds of the steps that count, for each size. Call this when is_over().
  [[nodiscard]] std::vector<double> step_s() const;

 private:
  Config config_;
  /// The number of steps before the next step that counts.
  std::int64_t num_waiting_;
  bool skips_ = false;
  double last_end_s_ = 0.0;
  /// The seconds of the steps that count, for each trial so far, the present trial included.
  std::vector<std::vector<double>> trials_ = {{}};
};

}  // namespace gossamer
