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
#include <memory>
#include <mutex>
#include <utility>

namespace gossamer {

/// What the worker and the caller share: whether the operation is over, and how it ended.
class RequestState {
 public:
  void complete();
  void fail(std::exception_ptr error);
  [[nodiscard]] bool done() const;
  /// Blocks until complete() or fail(); rethrows what fail() was given.
  void wait() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable over_;
  bool done_ = false;
  std::exception_ptr error_;
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
  /// There is an operation that wait() has not seen the end of.
  [[nodiscard]] bool pending() const { return state_ != nullptr; }
  /// What another operation may wait for (OpContext::after); null when there is none.
  [[nodiscard]] const std::shared_ptr<RequestState>& state() const { return state_; }

 private:
  std::shared_ptr<RequestState> state_;
};

}  // namespace gossamer
