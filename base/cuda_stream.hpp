#pragma once
// A CUDA stream as a Stream; stream.hpp has the protocol.
//
// run() enqueues a host function (cudaLaunchHostFunc). When a host function throws, the stream
// calls no further host functions, and the next check(), record() or synchronize() throws the
// error. Kernels and copies that are on the device already still run.
//
// This stream never makes the device wait for another thread of the host: wait() blocks the caller
// for an event that is not CUDA's. The reason is the driver. Some calls, such as cudaFree() and the
// first launch of a kernel, wait until the device is idle. Until then no other thread of the
// process can call CUDA. If the device waits for such a thread, and the thread needs CUDA first,
// both wait for ever (docs/design/decisions/gpus.md has the measurements).

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/stream.hpp"

namespace gossamer {

/// Allocates `numel` uninitialised elements of a device's memory.
using DeviceAllocator = std::function<Buffer(std::int64_t numel, DType dtype)>;

/// Allocates with cudaMalloc and frees with cudaFree. Freeing waits for the device, so this is for
/// memory that stays until the end. The allocator throws DeviceError.
DeviceAllocator cuda_malloc_allocator(int device);

struct CudaStreamOptions {
  int device = 0;
  /// The cudaStream_t to use; it must outlive the CudaStream (null is CUDA's default stream).
  /// Nothing: the CudaStream creates its own, which does not wait for the default stream.
  std::optional<void*> native = std::nullopt;
  /// The device prefers this stream's work to that of other streams, where it has a choice.
  bool high_priority = false;
  /// Where allocate() takes its memory from. Empty: cuda_malloc_allocator().
  DeviceAllocator allocate = {};
};

class CudaStream : public Stream {
 public:
  /// Throws DeviceError when CUDA refuses the stream.
  explicit CudaStream(CudaStreamOptions options);
  /// Waits for the work on the device; drops errors.
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  [[nodiscard]] Device device() const override;
  [[nodiscard]] bool immediate() const override { return false; }
  [[nodiscard]] bool on_host() const override { return false; }
  [[nodiscard]] void* native() const override { return native_; }
  void enter() override;
  void run(std::function<void()> work) override;
  EventPtr record() override;
  void wait(EventPtr event) override;
  void copy(const Block& to, const ConstBlock& from) override;
  void zero(const Block& block) override;
  Buffer allocate(std::int64_t numel, DType dtype) override;
  Buffer allocate_host(std::int64_t numel, DType dtype) override;
  void keep(std::shared_ptr<void> owner) override;
  void synchronize() override;
  void check() override;

 private:
  /// The first error of a host function. Host functions share it, because they may outlive the
  /// stream.
  struct Failure;

  /// Releases the owners given to keep() whose work is done.
  void drop_done();

  CudaStreamOptions options_;
  /// The cudaStream_t that this object created; null where the caller gave one.
  std::shared_ptr<void> owned_;
  void* native_ = nullptr;
  std::shared_ptr<Failure> failure_;
  std::mutex mutex_;
  std::deque<std::pair<EventPtr, std::shared_ptr<void>>> kept_;  // guarded by mutex_
};

// In a build without CUDA, base/no_cuda.cpp defines the three functions below.

/// Throws ConfigError where there is no such GPU or the build has no CUDA, and DeviceError when
/// CUDA refuses the stream.
std::unique_ptr<Stream> make_cuda_stream(const CudaStreamOptions& options);

/// `GPU-` and the digits of the device's UUID; empty in a build without CUDA. Throws DeviceError.
std::string cuda_uuid(int device);

/// The number of GPUs that this process sees (CUDA_VISIBLE_DEVICES); 0 without a driver.
int num_cuda_devices();

}  // namespace gossamer
