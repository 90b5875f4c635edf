#include "base/worker_pool.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/thread.hpp"

namespace gossamer {

WorkerPool::WorkerPool(int num_threads) {
  if (num_threads < 1) throw std::logic_error("WorkerPool: at least one thread is needed");
  try {
    for (int index = 1; index < num_threads; ++index) {
      shared_->threads.push_back(
          start_thread([&shared = *shared_, index] { work(shared, index); }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() {
  if (home_.is_here()) {
    stop();
  } else {
    // The threads are the parent's, and even the conditions would wait for them.
    static_cast<void>(shared_.release());
  }
}

void WorkerPool::stop() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->begin.notify_all();
  for (std::thread& thread : shared_->threads) thread.join();
}

void WorkerPool::run(const std::function<void(int)>& part) {
  Shared& shared = *shared_;
  if (shared.threads.empty()) return part(0);
  if (!home_.is_here()) {
    throw std::logic_error("WorkerPool: the threads are those of the process that has forked");
  }
  {
    const std::lock_guard lock(shared.mutex);
    shared.part = &part;
    shared.num_working = num_threads();
    ++shared.turn;
  }
  shared.begin.notify_all();
  call(shared, part, 0);
  std::unique_lock lock(shared.mutex);
  shared.end.wait(lock, [&shared] { return shared.num_working == 0; });
  shared.part = nullptr;
  if (const auto error = std::exchange(shared.error, nullptr)) std::rethrow_exception(error);
}

void WorkerPool::share(std::int64_t numel, std::int64_t grain,
                       const std::function<void(const PartRange&)>& work) {
  run([&](int index) { work(part_range(numel, num_threads(), index, grain)); });
}

void WorkerPool::work(Shared& shared, int index) {
  std::int64_t seen = 0;
  while (true) {
    const std::function<void(int)>* part = nullptr;
    {
      std::unique_lock lock(shared.mutex);
      shared.begin.wait(lock, [&] { return shared.stopping || shared.turn != seen; });
      if (shared.stopping) return;
      seen = shared.turn;
      part = shared.part;
    }
    call(shared, *part, index);
  }
}

void WorkerPool::call(Shared& shared, const std::function<void(int)>& part, int index) {
  std::exception_ptr error;
  try {
    part(index);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(shared.mutex);
  if (error && !shared.error) shared.error = error;
  if (--shared.num_working == 0) shared.end.notify_one();
}

PartRange part_range(std::int64_t numel, int num_parts, int index, std::int64_t grain) {
  const std::int64_t grains = (numel + grain - 1) / grain;
  const auto cut = [&](std::int64_t part) {
    // This form cannot overflow, and two neighbouring parts compute the same cut.
    const std::int64_t whole = grains / num_parts;
    const std::int64_t rest = grains % num_parts;
    return std::min(numel, (part * whole + std::min(part, rest)) * grain);
  };
  return {cut(index), cut(std::int64_t{index} + 1)};
}

}  // namespace gossamer
