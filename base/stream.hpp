#pragma once
// A queue of work on a device: what it is given runs in the order given, possibly long after the
// call that gave it has returned. Everything that touches the memory of a model goes through one,
// so that the same pipeline runs on processors and on GPUs.
//
// Three kinds:
//   InlineStream   work is done when the call returns; this is how processors train;
//   ThreadStream   a thread of this process works the queue off, and lags behind like a GPU does;
//                  it stands for one in tests, where the thread sanitizer finds missing waits;
//   CudaStream     a CUDA stream (base/cuda_stream.hpp).
//
// Order between streams, and between a stream and a host thread, comes from events alone. Whoever
// has waited for an event sees everything that was written before it.
//
// Ownership: work is given plain pointers; whoever gives it keeps the memory until the work is done
// (in the order of the stream, or by synchronize()).
//
// Errors: work that throws ends the stream: what follows is dropped, and the next call of record(),
// synchronize() or check() throws what it threw.
//
// Thread safety: any thread may call; the order of concurrent calls is not defined.

#include <exception>
#include <functional>
#include <memory>

#include "base/buffer.hpp"
#include "base/types.hpp"

namespace gossamer {

/// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;
  /// All work before the event is done, or was dropped after an error. Never blocks.
  [[nodiscard]] virtual bool done() const = 0;
  /// Blocks until done().
  virtual void wait() const = 0;
};

/// Null: there is nothing to wait for.
using EventPtr = std::shared_ptr<const Event>;

/// Null: no error.
using StreamHold = std::function<void(std::exception_ptr error)>;

class Stream {
 public:
  virtual ~Stream() = default;

  /// Where the memory lies that its work may touch.
  [[nodiscard]] virtual Device device() const = 0;
  /// Work is done when the call that gives it returns, and what it throws is thrown by that call.
  [[nodiscard]] virtual bool immediate() const = 0;
  /// run() may touch the memory of device().
  [[nodiscard]] virtual bool on_host() const = 0;
  /// The cudaStream_t of a CUDA stream; null elsewhere.
  [[nodiscard]] virtual void* native() const { return nullptr; }

  /// Makes device() the calling thread's own, for libraries that do not ask which one to take.
  virtual void enter() {}

  /// Calls `work` on some host thread. On a CUDA stream it must be short and call neither CUDA nor
  /// anything that waits: the device waits for it, and other streams' work may stand behind it.
  virtual void run(std::function<void()> work) = 0;
  /// What is given later waits until the function that is returned has been called, once, from any
  /// thread; an error that it is given ends the stream. Not for streams whose work is done at once:
  /// std::logic_error.
  virtual StreamHold hold() = 0;
  virtual EventPtr record() = 0;
  /// What is given later waits for `event`.
  virtual void wait(EventPtr event) = 0;
  /// As many bytes as both have; between device() and the host, in either direction, or within
  /// one of them. Host memory should come from allocate_host(). Throws std::logic_error where the
  /// blocks differ in size.
  virtual void copy(const Block& to, const ConstBlock& from) = 0;

  virtual void zero(const Block& block) = 0;

  /// Memory of device(), zero for all work given later.
  virtual Buffer allocate(std::int64_t numel, DType dtype) = 0;
  /// Zero-filled host memory that copies to and from the device are fastest with.
  virtual Buffer allocate_host(std::int64_t numel, DType dtype) = 0;

  /// Keeps `owner` alive until the work given so far is done or dropped, also after an error.
  virtual void keep(std::shared_ptr<void> owner) = 0;
  /// Blocks until all work is done, or was dropped after an error: nothing touches memory any more,
  /// also where it throws.
  virtual void synchronize() = 0;
  /// Never blocks.
  virtual void check() = 0;
};

/// Whoever leaves the scope of one, by an error too, leaves no work of the stream behind.
class SynchronizedScope {
 public:
  /// `stream` outlives this.
  explicit SynchronizedScope(Stream& stream) : stream_(stream) {}
  ~SynchronizedScope() {
    try {
      stream_.synchronize();
    } catch (...) {  // NOLINT(bugprone-empty-catch): check() tells it again
    }
  }
  SynchronizedScope(const SynchronizedScope&) = delete;
  SynchronizedScope& operator=(const SynchronizedScope&) = delete;

 private:
  Stream& stream_;
};

}  // namespace gossamer
