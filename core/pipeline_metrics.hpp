#pragma once
// Where a step's time goes, what it sends, and how far training has come.

#include <chrono>
#include <cstdint>

namespace gossamer {

/// Sums over all steps so far. Nothing in training depends on them.
struct PipelineMetrics {
  /// Seconds that steps stood still for messages.
  double wait_s = 0.0;
  /// Seconds in the inspection of gradients, in mixing and in updates.
  double update_s = 0.0;
  /// Seconds in all of the pipeline: waiting, updates, the start of exchanges, and the rest.
  double pipeline_s = 0.0;
  /// Bytes that this rank has to send at the least; see exchange_bytes().
  double bytes_sent = 0.0;
};

/// How far training has come; part of the state that a checkpoint holds. The learning rate follows
/// num_updates().
struct Progress {
  std::int64_t num_steps = 0;
  /// Steps that mixed and did not update, because a gradient was not finite.
  std::int64_t num_skipped = 0;

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

/// Adds the seconds of its life to update_s, but for the seconds that lanes meanwhile add to
/// wait_s.
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
