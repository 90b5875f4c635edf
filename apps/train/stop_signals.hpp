#pragma once
// Catches SIGINT, SIGTERM, SIGHUP and SIGUSR1, so that a run can end between two steps.

#include <atomic>
#include <csignal>
#include <thread>

namespace gossamer::apps {

/// Catches SIGINT, SIGTERM, SIGHUP and SIGUSR1 while this object lives. It keeps the first signal
/// for caught(). Signals within a second after it are taken for the same request; a later one ends
/// the process at once. A signal that the process was told to ignore (nohup, jobs in the
/// background) stays ignored.
class StopSignals {
 public:
  /// Blocks the signals for this thread and for the threads that it starts from now on, so that
  /// only this object's own thread receives them. Construct it before any other thread runs.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The number of the signal that has come; 0: none. Any thread may call.
  [[nodiscard]] int caught() const { return caught_.load(); }

 private:
  void listen(const std::stop_token& stop);

  sigset_t signals_{};
  sigset_t blocked_before_{};
  std::atomic<int> caught_ = 0;
  std::jthread listener_;
};

}  // namespace gossamer::apps
