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
  Listener listener;
  {
    const std::lock_guard lock(mutex_);
    error_ = error;
    done_ = true;
    listener = std::exchange(listener_, nullptr);
  }
  over_.notify_all();
  if (listener) listener(error);
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
    return confirm_ ? confirm_() : check_();
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

void RequestState::when_over(Listener listener) {
  if (event_ || !parts_.empty()) {
    throw std::logic_error("RequestState::when_over: this is no operation of a worker");
  }
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    if (!done_) {
      listener_ = std::move(listener);
      return;
    }
    error = error_;
  }
  listener(error);
}

void RequestState::wait_on(Stream& stream) const {
  for (const auto& part : parts_) part->wait_on(stream);
  if (!parts_.empty()) return;
  if (!event_ || confirm_ || stream.immediate()) return wait();
  check();
  stream.wait(event_);
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

template <class Waits>
void Request::empty_after(const Waits& waits) {
  if (!state_) return;
  try {
    waits(*state_);
  } catch (...) {
    if (state_->done()) state_.reset();
    throw;
  }
  state_.reset();
}

void Request::wait() {
  empty_after([](const RequestState& state) { state.wait(); });
}

void Request::wait_on(Stream& stream) {
  empty_after([&stream](const RequestState& state) { state.wait_on(stream); });
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
