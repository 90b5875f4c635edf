#pragma once
// Wakes a progress worker that sleeps.
//
// Protocol: the worker calls expect() before it looks at its operations, and sleep() when none has
// moved. A peer that has moved one of them calls tell() afterwards. Then either tell() ends the
// sleep, or the look came later than what the peer did. Both exchange one flag, and an exchange
// sees what was written before the exchange that precedes it.
//
// Thread safety: any thread may call ring() and tell(); the worker alone calls the others.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace gossamer {

class Doorbell {
 public:
  Doorbell() = default;
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;
  virtual ~Doorbell() = default;

  /// Ends the present sleep, or the next sleep if there is none.
  virtual void ring() {
    {
      const std::lock_guard lock(mutex_);
      has_rung_ = true;
    }
    rings_.notify_one();
  }
  /// Rings if the worker has expected news since the last call.
  void tell() {
    if (expects_.exchange(false, std::memory_order_acq_rel)) ring();
  }
  /// Makes tell() ring from now on.
  void expect() { expects_.exchange(true, std::memory_order_acq_rel); }
  /// Returns after a ring, or after `longest`.
  virtual void sleep(std::chrono::microseconds longest) {
    std::unique_lock lock(mutex_);
    rings_.wait_for(lock, longest, [this] { return has_rung_; });
    has_rung_ = false;
  }

 private:
  std::atomic<bool> expects_ = false;
  std::mutex mutex_;
  std::condition_variable rings_;
  bool has_rung_ = false;  // guarded by mutex_
};

}  // namespace gossamer
