#pragma once
// A progress worker's sign of life. The worker beats once per turn. Threads that wait for one of
// its requests watch the pulse, so their wait ends even if the worker hangs in a call.
//
// Thread safety: any thread may call anything.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "base/error.hpp"

namespace gossamer {

class WorkerPulse {
 public:
  /// Errors name `rank`. A worker that makes no turn for `patience_s` seconds counts as stuck.
  /// wait() calls `while_waiting` at every look.
  WorkerPulse(int rank, double patience_s, std::function<void()> while_waiting = {})
      : rank_(rank), patience_s_(patience_s), while_waiting_(std::move(while_waiting)) {}

  [[nodiscard]] int rank() const { return rank_; }
  /// The worker calls it once per turn.
  void beat() { turns_.fetch_add(1, std::memory_order_relaxed); }
  /// Waits on `changed` until `is_over` returns true; `lock` guards what it reads. Throws
  /// CommError about `label` when the worker is stuck, and what while_waiting() throws. Time in
  /// which the whole process was stopped does not count.
  void wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
            const OpLabel& label, const std::function<bool()>& is_over) const;

 private:
  int rank_;
  double patience_s_;
  std::function<void()> while_waiting_;
  std::atomic<std::uint64_t> turns_ = 0;
};

}  // namespace gossamer
