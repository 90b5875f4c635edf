#pragma once
// SIGINT and SIGTERM end a run between two steps.

#include <atomic>
#include <csignal>
#include <thread>

namespace gossamer::apps {

/// Takes SIGINT and SIGTERM while it lives. The first signal is remembered for those who ask; the
/// second one ends the process at once. A signal that the process was told to ignore (nohup, jobs
/// in the background) stays ignored.
class StopSignals {
 public:
  /// Blocks the signals for this thread and for the threads that it starts from now on, so that
  /// only this object's own thread receives them. Other threads must not run yet.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that has come; 0: none. Any thread may call it.
  [[nodiscard]] int caught() const { return caught_.load(); }

 private:
  void listen(const std::stop_token& stop);

  sigset_t signals_{};
  sigset_t blocked_before_{};
  std::atomic<int> caught_ = 0;
  std::jthread listener_;
};

}  // namespace gossamer::apps
