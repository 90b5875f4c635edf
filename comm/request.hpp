#pragma once
// A Request is the caller's handle of an operation that has been submitted to a Communicator.
//
// Protocol: the Communicator returns a Request for every operation. wait() and done() tell when the
// operation is over. Over means: everything received has landed AND everything sent may be written
// again. Dropping a Request does not stop its operation: the progress worker finishes the operation
// and keeps its owner alive until then.
//
// Every wait ends, in one of four ways:
//
// 1. The operation ends.
// 2. The worker's timeout fails the operation.
// 3. The worker is destroyed and fails every operation that it still holds (Completion).
// 4. The worker hangs, and the wait itself gives up (WorkerPulse).
//
// Thread safety: one thread uses a Request; the worker uses its RequestState.

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/stream.hpp"
#include "comm/worker_pulse.hpp"

namespace gossamer {

/// The state that the worker and the caller share: whether the operation is over, and how it ended.
class RequestState {
 public:
  /// Receives the error of an operation that has failed, or null.
  using Listener = std::function<void(const std::exception_ptr& error)>;

  RequestState() = default;
  /// An operation of a worker: wait() gives up when `pulse` stops. Errors name `label`.
  RequestState(std::shared_ptr<const WorkerPulse> pulse, const OpLabel& label)
      : pulse_(std::move(pulse)), label_(label) {}
  /// Over when all parts are over; fails with the error of the first part that failed.
  explicit RequestState(std::vector<std::shared_ptr<RequestState>> parts)
      : parts_(std::move(parts)) {}
  /// Over when `event` has happened. `check`, which never blocks, then throws if the operation has
  /// failed. `confirm`, where given, does so thoroughly; then wait_on() waits as wait() does,
  /// because later work must not run when the operation has failed.
  RequestState(EventPtr event, std::function<void()> check, std::function<void()> confirm = {})
      : event_(std::move(event)), check_(std::move(check)), confirm_(std::move(confirm)) {}
  void complete();
  void fail(std::exception_ptr error);
  /// fail() with a CommError that names this operation.
  void fail(std::string_view reason);
  [[nodiscard]] bool done() const;
  /// Blocks until complete() or fail(); rethrows the error given to fail(). Throws CommError when
  /// the worker hangs.
  void wait() const;
  /// For an operation of a worker. Calls `listener` exactly once: with the error given to fail(),
  /// or with null. Calls it at once if the operation is over, else on the thread that ends the
  /// operation, so `listener` must be quick. One listener at a time.
  void when_over(Listener listener);
  using Operations = std::vector<std::shared_ptr<RequestState>>;
  /// Blocks until one of the operations is over, which may have failed. The caller needs the
  /// operations `awaited`; the operations `others` only wake it up, too. All of them are operations
  /// of workers. The call replaces their listeners. Throws CommError when the worker hangs.
  static void wait_for_any(const Operations& awaited, const Operations& others = {});
  /// Whether a thread waits for this operation of a worker at this moment.
  [[nodiscard]] bool is_awaited() const { return num_waiting_ > 0; }
  /// Makes later work of `stream` wait for the operation. The caller waits for the parts that have
  /// no event. Throws as wait() and check().
  void wait_on(Stream& stream) const;
  /// Throws if it is known that the operation has failed. Never blocks.
  void check() const;

 private:
  /// A thread that waits, from the first to the last moment.
  class Waiting {
   public:
    explicit Waiting(const RequestState& state) : state_(state) { ++state_.num_waiting_; }
    ~Waiting() { --state_.num_waiting_; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    const RequestState& state_;
  };

  void end(std::exception_ptr error);

  std::shared_ptr<const WorkerPulse> pulse_;
  OpLabel label_;
  std::vector<std::shared_ptr<RequestState>> parts_;
  EventPtr event_;
  std::function<void()> check_;
  std::function<void()> confirm_;
  mutable std::mutex mutex_;
  mutable std::condition_variable over_;
  mutable std::atomic<int> num_waiting_ = 0;
  bool done_ = false;
  std::exception_ptr error_;
  Listener listener_;
};

/// The worker's side of a request, which ends the request exactly once. A Completion that is
/// destroyed before its end fails the request, so that no thread waits for an operation that is
/// gone.
class Completion {
 public:
  explicit Completion(std::shared_ptr<RequestState> state) : state_(std::move(state)) {}
  Completion(Completion&& other) noexcept = default;
  Completion& operator=(Completion&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;
  ~Completion() {
    if (state_) state_->fail("it was dropped before its end");
  }

  [[nodiscard]] bool ended() const { return state_ == nullptr; }
  [[nodiscard]] bool is_awaited() const { return state_ != nullptr && state_->is_awaited(); }
  void complete() { std::exchange(state_, nullptr)->complete(); }
  void fail(std::exception_ptr error) { std::exchange(state_, nullptr)->fail(std::move(error)); }

 private:
  std::shared_ptr<RequestState> state_;
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
  /// Blocks until the operation is over, then empties the request. Throws CommError, and what
  /// LaunchOptions::while_waiting throws; the request then keeps its operation.
  void wait();
  /// Makes later work of `stream` wait for the operation, and empties the request. Only operations
  /// of a device's own stream (NCCL's) have an event for that; otherwise the caller waits, and all
  /// is as with wait().
  void wait_on(Stream& stream);
  /// True until wait() or wait_on() has been called.
  [[nodiscard]] bool pending() const { return state_ != nullptr; }
  /// The state for operations that start after this operation (OpContext::after); null when the
  /// request is empty.
  [[nodiscard]] const std::shared_ptr<RequestState>& state() const { return state_; }

 private:
  template <class Waits>
  void empty_after(const Waits& waits);

  std::shared_ptr<RequestState> state_;
};

/// Returns one request that is over when all of `requests` are over.
Request all_of(std::vector<Request> requests);

}  // namespace gossamer
