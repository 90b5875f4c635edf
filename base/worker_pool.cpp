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
      threads_.push_back(start_thread([this, index] { work(index); }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(const std::function<void(int)>& part) {
  if (threads_.empty()) return part(0);
  {
    const std::lock_guard lock(mutex_);
    part_ = &part;
    num_working_ = num_threads();
    ++turn_;
  }
  begin_.notify_all();
  call(part, 0);
  std::unique_lock lock(mutex_);
  end_.wait(lock, [this] { return num_working_ == 0; });
  part_ = nullptr;
  if (const auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void WorkerPool::share(std::int64_t numel, std::int64_t grain,
                       const std::function<void(const PartRange&)>& work) {
  run([&](int index) { work(part_range(numel, num_threads(), index, grain)); });
}

void WorkerPool::work(int index) {
  std::int64_t seen = 0;
  while (true) {
    const std::function<void(int)>* part = nullptr;
    {
      std::unique_lock lock(mutex_);
      begin_.wait(lock, [&] { return stopping_ || turn_ != seen; });
      if (stopping_) return;
      seen = turn_;
      part = part_;
    }
    call(*part, index);
  }
}

void WorkerPool::call(const std::function<void(int)>& part, int index) {
  std::exception_ptr error;
  try {
    part(index);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  if (error && !error_) error_ = error;
  if (--num_working_ == 0) end_.notify_one();
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
