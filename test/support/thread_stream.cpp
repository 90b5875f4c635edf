#include "test/support/thread_stream.hpp"

#include <stdexcept>
#include <utility>

#include "base/host_stream.hpp"

namespace gossamer {
namespace {

class ThreadEvent : public Event {
 public:
  void set() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    over_.notify_all();
  }
  [[nodiscard]] bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() const override {
    std::unique_lock lock(mutex_);
    over_.wait(lock, [this] { return done_; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable over_;
  bool done_ = false;
};

/// Work that sets its event when it is destroyed: after its turn, or when it is dropped after an
/// error.
class Signal {
 public:
  explicit Signal(std::shared_ptr<ThreadEvent> event) : event_(std::move(event)) {}
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;
  ~Signal() { event_->set(); }

 private:
  std::shared_ptr<ThreadEvent> event_;
};

}  // namespace

ThreadStream::~ThreadStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ThreadStream::run(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

EventPtr ThreadStream::record() {
  check();
  auto event = std::make_shared<ThreadEvent>();
  run([signal = std::make_shared<Signal>(event)] {});
  return event;
}

void ThreadStream::wait(EventPtr event) {
  if (event) run([event = std::move(event)] { event->wait(); });
}

void ThreadStream::copy(const Block& to, const ConstBlock& from) {
  if (to.bytes() != from.bytes()) throw std::logic_error("Stream::copy: the blocks differ in size");
  run([to, from] { InlineStream().copy(to, from); });
}

void ThreadStream::zero(const Block& block) {
  run([block] { InlineStream().zero(block); });
}

Buffer ThreadStream::allocate(std::int64_t numel, DType dtype) {
  const Buffer memory(numel, dtype);
  Block block = memory.block();
  block.device = device_;
  return {memory.owner(), block};
}

void ThreadStream::keep(std::shared_ptr<void> owner) {
  run([owner = std::move(owner)] {});
}

void ThreadStream::synchronize() {
  if (const EventPtr event = record()) event->wait();
  check();
}

void ThreadStream::check() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void ThreadStream::work_off() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    // Destroy what the work owns before any thread can learn that the work is done.
    work = nullptr;
    std::deque<std::function<void()>> dropped;
    lock.lock();
    if (error) {
      error_ = error;
      std::swap(dropped, queue_);
      lock.unlock();
      dropped.clear();
      lock.lock();
    }
  }
}

}  // namespace gossamer
