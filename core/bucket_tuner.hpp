#pragma once
// Finds the size of buckets with which training steps are shortest, by trying some sizes. Training
// goes on meanwhile. Every size has two trials: all sizes in their order, then all in reverse, so
// that a slow drift of the machine favours no size. The first steps of a trial do not count. The
// longest fourth of its other steps does not count either, because an evaluation or a checkpoint
// may lie in them.
//
// Protocol: train with buckets of size(), and call end_step() after every step. The number of steps
// depends on the number of sizes alone, so all ranks are at the same trial. When is_over(), compare
// the means of step_s() over all ranks, so that all ranks choose the same size.
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
  /// The steps of a trial after these. A multiple of the period of most topologies.
  static constexpr std::int64_t kMeasured = 8;

  /// `sizes`: at least one, all different. Throws std::logic_error if there is none.
  explicit BucketTuner(std::vector<std::int64_t> sizes);

  /// The size of buckets in bytes for the next step. After the last trial: the last one.
  [[nodiscard]] std::int64_t size() const;
  /// Tells that a step has ended. `now_s` is the time in seconds on any steady clock. Returns true
  /// if the trial is over, so that size() may be another one now.
  bool end_step(double now_s);
  [[nodiscard]] bool is_over() const;
  /// The sizes, in the order given.
  [[nodiscard]] const std::vector<std::int64_t>& sizes() const { return sizes_; }
  /// The mean seconds of the steps that count, for each size. Call this when is_over().
  [[nodiscard]] std::vector<double> step_s() const;

 private:
  std::vector<std::int64_t> sizes_;
  /// Steps of the present trial so far.
  std::int64_t num_steps_ = 0;
  double last_end_s_ = 0.0;
  /// The seconds of the measured steps, for each trial so far, the present one included.
  std::vector<std::vector<double>> trials_ = {{}};
};

}  // namespace gossamer
