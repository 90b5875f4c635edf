#pragma once
// A WorkerPool shares one loop over memory among a few threads. The caller is one of them, so a
// pool of one starts no thread and costs nothing. Idle threads sleep and never spin, because they
// share their cores with other computation.
//
// Thread safety: one thread at a time may call run() or share(). In a child of fork() the pool has
// no threads: it may be destroyed there, and does nothing else.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fork.hpp"

namespace gossamer {

/// Part `index` of `num_parts`: elements [first, last) of `numel`. Parts are contiguous, of nearly
/// equal size, and cut at multiples of `grain` elements.
struct PartRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
PartRange part_range(std::int64_t numel, int num_parts, int index, std::int64_t grain);

class WorkerPool {
 public:
  /// `num_threads` counts the caller. Throws std::logic_error for fewer than 1, and
  /// std::runtime_error when the system gives no thread.
  explicit WorkerPool(int num_threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] int num_threads() const { return static_cast<int>(shared_->threads.size()) + 1; }
  /// Runs part(0) ... part(num_threads() - 1), each once, and waits for all. Rethrows one of the
  /// errors that they threw.
  void run(const std::function<void(int)>& part);
  /// Runs `work` once per thread, each time with the part_range() of `numel` elements for that
  /// thread. Waits and throws as run() does.
  void share(std::int64_t numel, std::int64_t grain,
             const std::function<void(const PartRange&)>& work);

 private:
  /// The state that the threads share.
  struct Shared {
    std::mutex mutex;
    std::condition_variable begin;
    std::condition_variable end;
    const std::function<void(int)>* part = nullptr;  // guarded by mutex
    std::int64_t turn = 0;                           // guarded by mutex
    int num_working = 0;                             // guarded by mutex
    bool stopping = false;                           // guarded by mutex
    std::exception_ptr error;                        // guarded by mutex
    std::vector<std::thread> threads;
  };

  void stop();
  static void work(Shared& shared, int index);
  static void call(Shared& shared, const std::function<void(int)>& part, int index);

  std::unique_ptr<Shared> shared_ = std::make_unique<Shared>();
  HomeProcess home_;
};

}  // namespace gossamer
