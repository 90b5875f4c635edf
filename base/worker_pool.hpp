#pragma once
// A few threads that share one loop over memory. The caller works too, so a pool of one has no
// thread of its own and costs nothing.
//
// Thread safety: one thread at a time calls run(). Idle threads sleep; they never spin, because
// they share their cores with other computation.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gossamer {

/// Elements [first, last) of `numel` that belong to part `index` of `num_parts`: contiguous, of
/// nearly equal size, cut at multiples of `grain`.
struct PartRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
PartRange part_range(std::int64_t numel, int num_parts, int index, std::int64_t grain);

class WorkerPool {
 public:
  /// `num_threads` counts the caller; at least 1, or std::logic_error.
  explicit WorkerPool(int num_threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] int num_threads() const { return static_cast<int>(threads_.size()) + 1; }
  /// Runs part(0) ... part(num_threads() - 1), each once, and waits for all. Rethrows what one of
  /// them threw.
  void run(const std::function<void(int)>& part);
  /// The same for the part_range()s of `numel` elements, one for each thread.
  void share(std::int64_t numel, std::int64_t grain,
             const std::function<void(const PartRange&)>& work);

 private:
  void work(int index);
  void call(const std::function<void(int)>& part, int index);

  std::mutex mutex_;
  std::condition_variable begin_;
  std::condition_variable end_;
  const std::function<void(int)>* part_ = nullptr;  // guarded by mutex_
  std::int64_t turn_ = 0;                           // guarded by mutex_
  int num_working_ = 0;                             // guarded by mutex_
  bool stopping_ = false;                           // guarded by mutex_
  std::exception_ptr error_;                        // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace gossamer
