#pragma once
// Where a step's time goes, and what it sends.

#include <chrono>
#include <cstdint>

namespace gossamer {

/// Sums over all steps so far.
struct PipelineMetrics {
  /// Seconds that steps stood still for an exchange.
  double wait_s = 0.0;
  /// Seconds in inspection of gradients, mix and update.
  double update_s = 0.0;
  /// Seconds in the bucket manager's part of the steps altogether: waiting, updates, starting of
  /// exchanges, everything around them.
  double pipeline_s = 0.0;
  std::int64_t num_steps = 0;
  /// Steps that mixed but did not update, because a gradient was not finite.
  std::int64_t num_skipped = 0;
  /// Bytes this rank has to send at the least; see exchange_bytes().
  double bytes_sent = 0.0;

  [[nodiscard]] std::int64_t num_updates() const { return num_steps - num_skipped; }
};

/// Adds the seconds of its life to a sum.
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
