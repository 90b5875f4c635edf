#pragma once
// A Request is the caller's end of an operation that a ProgressWorker drives.
//
// Protocol: a Communicator hands it out when the operation is submitted; wait() or done() tell when
// the operation is over. Over means: everything received has landed AND everything sent may be
// written again. A Request dropped while its operation runs does not stop it: the worker finishes
// it, and keeps alive whatever owner was passed with it.
//
// Thread safety: one thread uses a Request; the worker uses its RequestState.

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/stream.hpp"

namespace gossamer {

/// What the worker and the caller share: whether the operation is over, and how it ended.
class RequestState {
 public:
  RequestState() = default;
  /// Over when all parts are; fails with what one of them has failed with.
  explicit RequestState(std::vector<std::shared_ptr<RequestState>> parts)
      : parts_(std::move(parts)) {}
  /// Over when `event` has happened; then `check` throws if the operation has failed.
  RequestState(EventPtr event, std::function<void()> check)
      : event_(std::move(event)), check_(std::move(check)) {}
  void complete();
  void fail(std::exception_ptr error);
  [[nodiscard]] bool done() const;
  /// Blocks until complete() or fail(); rethrows what fail() was given.
  void wait() const;
  /// Calls `listener` once with what fail() was given, or with null: at once if it is over, else on
  /// the thread that ends it, which it must not hold up. One listener at a time.
  void when_over(StreamHold listener);
  /// What a stream can wait for in the place of when_over(); null: there is none.
  [[nodiscard]] const EventPtr& event() const { return event_; }
  /// Throws if it is known that the operation has failed. Never blocks.
  void check() const;

 private:
  void end(std::exception_ptr error);
  void when_all_over(StreamHold listener);

  std::vector<std::shared_ptr<RequestState>> parts_;
  EventPtr event_;
  std::function<void()> check_;
  mutable std::mutex mutex_;
  mutable std::condition_variable over_;
  bool done_ = false;
  std::exception_ptr error_;
  StreamHold listener_;
};

class Request {
 public:
  /// An operation that is over already.
  Request() = default;
  explicit Request(std::shared_ptr<RequestState> state) : state_(std::move(state)) {}
  Request(Request&&) noexcept = default;
  Request& operator=(Request&&) noexcept = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() = default;

  /// Never blocks. True also when the operation failed; wait() then throws.
  [[nodiscard]] bool done() const { return !state_ || state_->done(); }
  /// Blocks until the operation is over, then empties the request. Throws CommError.
  void wait() {
    if (const auto state = std::exchange(state_, nullptr)) state->wait();
  }
  /// What is given to the stream later waits for the operation; the caller only where the stream's
  /// work is done at once. Empties the request. An error ends the stream.
  void wait_on(Stream& stream);
  /// There is an operation that wait() has not seen the end of.
  [[nodiscard]] bool pending() const { return state_ != nullptr; }
  /// What another operation may wait for (OpContext::after); null when there is none.
  [[nodiscard]] const std::shared_ptr<RequestState>& state() const { return state_; }

 private:
  std::shared_ptr<RequestState> state_;
};

/// The request that is over when all of them are.
Request all_of(std::vector<Request> requests);

}  // namespace gossamer
