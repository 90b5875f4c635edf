#pragma once
// A Stream is a queue of work on a device. It runs work in the order given, possibly long after the
// call that gave the work has returned. All work on a model's memory goes through a Stream, so that
// the same pipeline runs on processors and on GPUs.
//
// There are two kinds, and a third in the tests (test/support/thread_stream.hpp):
//   InlineStream   does work before the call returns. Processors train with it.
//   CudaStream     a CUDA stream (base/cuda_stream.hpp).
//
// Order between streams, and between a stream and a host thread, comes from events alone. A thread
// or a stream that has waited for an event sees everything written before that event.
//
// Ownership: work holds plain pointers. The caller that gives work keeps the memory alive until the
// work is done: by order on the stream, by keep(), or by synchronize().
//
// Errors: work that throws ends the stream. The stream drops all later work, and record(),
// synchronize() and check() throw the error from then on. An immediate() stream differs: the call
// that gives the work throws its error.
//
// Thread safety: any thread may call; the order of concurrent calls is not defined.

#include <functional>
#include <memory>

#include "base/buffer.hpp"
#include "base/types.hpp"

namespace gossamer {

/// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;
  /// True when all work before the event is done, or was dropped after an error. Never blocks.
  [[nodiscard]] virtual bool done() const = 0;
  /// Blocks until done().
  virtual void wait() const = 0;
};

/// A shared event. Null means that there is nothing to wait for.
using EventPtr = std::shared_ptr<const Event>;

class Stream {
 public:
  virtual ~Stream() = default;

  /// The device whose memory the stream's work may touch.
  [[nodiscard]] virtual Device device() const = 0;
  /// True: a call that gives work returns when the work is done, and throws the work's error.
  [[nodiscard]] virtual bool immediate() const = 0;
  /// True: functions given to run() may touch the memory of device().
  [[nodiscard]] virtual bool on_host() const = 0;
  /// The cudaStream_t of a CUDA stream; null elsewhere.
  [[nodiscard]] virtual void* native() const { return nullptr; }

  /// Makes device() the calling thread's current device, for libraries that use the current one.
  virtual void enter() {}

  /// Calls `work` on some host thread. On a CUDA stream `work` must be short and must neither call
  /// CUDA nor wait for anything: the device waits for `work`, and so may other streams.
  virtual void run(std::function<void()> work) = 0;
  /// An event after all work given so far. Null where that work is done already. Throws the
  /// stream's error.
  virtual EventPtr record() = 0;
  /// Work given later waits for `event`; null does nothing.
  virtual void wait(EventPtr event) = 0;
  /// Copies `from` to `to`, within device(), within the host, or between the two in either
  /// direction. Host memory should come from allocate_host(), which is fastest. Throws
  /// std::logic_error where the blocks differ in size (bytes).
  virtual void copy(const Block& to, const ConstBlock& from) = 0;

  /// Sets all bytes of `block` to 0.
  virtual void zero(const Block& block) = 0;

  /// Memory of device() for `numel` elements; all work given later finds it zero.
  virtual Buffer allocate(std::int64_t numel, DType dtype) = 0;
  /// Zero-filled host memory for `numel` elements. Copies between such memory and the device are
  /// fastest.
  virtual Buffer allocate_host(std::int64_t numel, DType dtype) = 0;

  /// Keeps `owner` alive until the work given so far is done or was dropped after an error.
  virtual void keep(std::shared_ptr<void> owner) = 0;
  /// Blocks until all work is done or was dropped after an error, then throws the stream's error.
  /// No work touches memory afterwards, even when this call throws.
  virtual void synchronize() = 0;
  /// Throws the stream's error, if there is one. Never blocks.
  virtual void check() = 0;
};

/// Synchronizes a stream when the scope ends, by return or by exception. After the scope, no work
/// of the stream is left. The destructor drops the stream's error; check() throws it again.
class SynchronizedScope {
 public:
  /// `stream` must outlive this object.
  explicit SynchronizedScope(Stream& stream) : stream_(stream) {}
  ~SynchronizedScope() {
    try {
      stream_.synchronize();
    } catch (...) {  // NOLINT(bugprone-empty-catch): check() throws it again
    }
  }
  SynchronizedScope(const SynchronizedScope&) = delete;
  SynchronizedScope& operator=(const SynchronizedScope&) = delete;

 private:
  Stream& stream_;
};

}  // namespace gossamer
