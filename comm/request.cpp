#include "comm/request.hpp"

#include <algorithm>
#include <list>
#include <stdexcept>

namespace gossamer {

void RequestState::complete() { end(nullptr); }
void RequestState::fail(std::exception_ptr error) { end(std::move(error)); }
void RequestState::fail(std::string_view reason) {
  fail(std::make_exception_ptr(
      CommError({.rank = pulse_ ? pulse_->rank() : -1, .label = label_}, reason)));
}

void RequestState::end(std::exception_ptr error) {
  StreamHold listener;
  {
    const std::lock_guard lock(mutex_);
    error_ = error;
    done_ = true;
    listener = std::exchange(listener_, nullptr);
  }
  over_.notify_all();
  if (listener) listener(std::move(error));
}

bool RequestState::done() const {
  if (!parts_.empty()) {
    return std::ranges::all_of(parts_, [](const auto& part) { return part->done(); });
  }
  if (event_) return event_->done();
  const std::lock_guard lock(mutex_);
  return done_;
}

void RequestState::check() const {
  for (const auto& part : parts_) part->check();
  if (check_) return check_();
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void RequestState::wait() const {
  for (const auto& part : parts_) part->wait();
  if (!parts_.empty()) return;
  if (event_) {
    event_->wait();
    return check_();
  }
  const Waiting waiting(*this);
  std::unique_lock lock(mutex_);
  const auto is_over = [this] { return done_; };
  if (pulse_) {
    pulse_->wait(lock, over_, label_, is_over);
  } else {
    over_.wait(lock, is_over);
  }
  if (error_) std::rethrow_exception(error_);
}

void RequestState::when_over(StreamHold listener) {
  if (!parts_.empty()) return when_all_over(std::move(listener));
  if (event_) throw std::logic_error("a request of a device's stream has an event, no listener");
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    if (!done_) {
      listener_ = std::move(listener);
      return;
    }
    error = error_;
  }
  listener(std::move(error));
}

void RequestState::when_all_over(StreamHold listener) {
  struct Countdown {
    std::mutex mutex;
    std::size_t num_left = 0;
    std::exception_ptr error;
  };
  const auto countdown = std::make_shared<Countdown>();
  countdown->num_left = parts_.size();
  for (const auto& part : parts_) {
    part->when_over([countdown, listener](const std::exception_ptr& error) {
      std::exception_ptr first;
      {
        const std::lock_guard lock(countdown->mutex);
        if (!countdown->error) countdown->error = error;
        if (--countdown->num_left > 0) return;
        first = countdown->error;
      }
      listener(first);
    });
  }
}

void RequestState::wait_for_any(const Operations& awaited, const Operations& others) {
  if (awaited.empty()) throw std::logic_error("wait_for_any: there is nothing to wait for");
  struct Bell {
    std::mutex mutex;
    std::condition_variable rings;
    bool has_rung = false;
  };
  const auto bell = std::make_shared<Bell>();
  const auto ring = [bell](const std::exception_ptr& /*error*/) {
    const std::lock_guard lock(bell->mutex);
    bell->has_rung = true;
    bell->rings.notify_all();
  };
  std::list<Waiting> waiting;
  for (const auto& operation : awaited) {
    waiting.emplace_back(*operation);
    operation->when_over(ring);
  }
  for (const auto& operation : others) operation->when_over(ring);
  std::unique_lock lock(bell->mutex);
  const RequestState& first = *awaited.front();
  first.pulse_->wait(lock, bell->rings, first.label_, [&bell] { return bell->has_rung; });
}

void Request::wait() {
  if (!state_) return;
  try {
    state_->wait();
  } catch (...) {
    if (state_->done()) state_.reset();
    throw;
  }
  state_.reset();
}

void Request::wait_on(Stream& stream) {
  if (!stream.may_hold()) return wait();
  const auto state = std::exchange(state_, nullptr);
  if (!state) return;
  if (!state->event()) return state->when_over(stream.hold());
  state->check();
  stream.wait(state->event());
}

Request all_of(std::vector<Request> requests) {
  std::vector<std::shared_ptr<RequestState>> parts;
  for (const Request& request : requests) {
    if (request.pending()) parts.push_back(request.state());
  }
  if (parts.empty()) return {};
  return Request(std::make_shared<RequestState>(std::move(parts)));
}

}  // namespace gossamer
