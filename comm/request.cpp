#include "gossamer/comm/request.hpp"

namespace gossamer {

void RequestState::complete() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  over_.notify_all();
}

void RequestState::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_ = true;
  }
  over_.notify_all();
}

bool RequestState::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void RequestState::wait() const {
  std::unique_lock lock(mutex_);
  over_.wait(lock, [this] { return done_; });
  if (error_) std::rethrow_exception(error_);
}

}  // namespace gossamer
