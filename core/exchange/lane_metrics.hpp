#pragma once
// Counters of lanes: the time for which they hold up a step, and the bytes that they send.

#include <chrono>
#include <cstdint>

namespace gossamer {

/// Sums over all rounds so far. Nothing in training depends on them.
struct LaneMetrics {
  /// Seconds that steps stood still to wait for messages.
  double wait_s = 0.0;
  /// The least number of bytes that this rank has had to send; see bytes_sent() (rank_round.hpp).
  double bytes_sent = 0.0;
  /// Differences between this rank and its peers in the upper half of the range of their grid
  /// (DifferenceRange::num_wide). Counted in every window of a GridLane.
  std::int64_t num_wide_differences = 0;
};

/// Adds the seconds between its construction and destruction to a sum.
class ScopedTimer {
 public:
  explicit ScopedTimer(double& seconds) : seconds_(seconds), start_(Clock::now()) {}
  ~ScopedTimer() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_;
};

}  // namespace gossamer
