#pragma once
// A CUDA stream as a Stream; see stream.hpp.
//
// Work of run() is a host function of the stream (cudaLaunchHostFunc). What such work throws, or a
// hold is given, does not end what is on the device already: it is thrown by the next check(), and
// no further host work is called.
//
// hold() makes the device itself wait for a word of host memory (cuStreamWaitValue32), not a host
// function: those of all streams of a process may share one thread.

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/stream.hpp"

namespace gossamer {

/// Gives uninitialised memory of a device.
using DeviceAllocator = std::function<Buffer(std::int64_t numel, DType dtype)>;

/// cudaMalloc and cudaFree: for what stays until the end. Throws DeviceError.
DeviceAllocator cuda_malloc_allocator(int device);

struct CudaStreamOptions {
  int device = 0;
  /// The cudaStream_t to use, which outlives the stream (null is CUDA's default stream). Nothing:
  /// one of its own, which does not wait for the default stream.
  std::optional<void*> native = std::nullopt;
  /// Work overtakes that of other streams, where the device has a choice.
  bool high_priority = false;
  /// Empty: cuda_malloc_allocator().
  DeviceAllocator allocate = {};
};

class CudaStream : public Stream {
 public:
  /// Throws DeviceError.
  explicit CudaStream(CudaStreamOptions options);
  /// Waits for its work.
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  [[nodiscard]] Device device() const override;
  [[nodiscard]] bool immediate() const override { return false; }
  [[nodiscard]] bool on_host() const override { return false; }
  [[nodiscard]] void* native() const override { return native_; }
  void enter() override;
  void run(std::function<void()> work) override;
  StreamHold hold() override;
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
  /// What host functions and holds share with the stream; they may outlive it.
  struct Failure;
  class Gates;

  /// Lets owners go whose work is done.
  void drop_done();

  CudaStreamOptions options_;
  /// The stream's own; null where it was given one.
  std::shared_ptr<void> owned_;
  void* native_ = nullptr;
  std::shared_ptr<Failure> failure_;
  std::shared_ptr<Gates> gates_;
  std::mutex mutex_;
  std::deque<std::pair<EventPtr, std::shared_ptr<void>>> kept_;  // guarded by mutex_
};

/// `GPU-` and the digits of its UUID.
std::string cuda_uuid(int device);

/// The GPUs that this process sees (CUDA_VISIBLE_DEVICES); 0 without a driver.
int num_cuda_devices();

}  // namespace gossamer
