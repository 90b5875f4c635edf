#include "base/cuda_stream.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include <cuda.h>

#include "base/cuda_check.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

cudaStream_t as_stream(void* native) { return static_cast<cudaStream_t>(native); }

/// One CUDA event, recorded when it is made.
class CudaEvent : public Event {
 public:
  CudaEvent(int device, cudaStream_t stream) : device_(device) {
    // A host that waits sleeps instead of spinning: it shares its cores with other ranks.
    cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
               "cudaEventCreateWithFlags");
    const cudaError_t code = cudaEventRecord(event_, stream);
    if (code != cudaSuccess) {
      cudaEventDestroy(event_);
      cuda_check(code, "cudaEventRecord");
    }
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  ~CudaEvent() override { cudaEventDestroy(event_); }

  [[nodiscard]] cudaEvent_t get() const { return event_; }
  [[nodiscard]] bool done() const override {
    const CudaDeviceScope scope(device_);
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    cuda_check(code, "work on the GPU");
    return true;
  }
  void wait() const override {
    const CudaDeviceScope scope(device_);
    cuda_check(cudaEventSynchronize(event_), "work on the GPU");
  }

 private:
  int device_;
  cudaEvent_t event_ = nullptr;
};

std::shared_ptr<void> make_stream(bool high_priority) {
  int least = 0;
  int greatest = 0;
  cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
             "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                          high_priority ? greatest : least),
             "cudaStreamCreateWithPriority");
  return {stream, [](void* native) { cudaStreamDestroy(as_stream(native)); }};
}

/// Zero-filled, pinned host memory that the device can access.
Buffer allocate_pinned(int device, std::int64_t numel, DType dtype) {
  const CudaDeviceScope scope(device);
  const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(numel * size_of(dtype), 1));
  void* data = nullptr;
  cuda_check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
             concat("cudaHostAlloc of ", bytes, " bytes"));
  std::memset(data, 0, bytes);
  std::shared_ptr<void> owner(data, [](void* address) { cudaFreeHost(address); });
  return {std::move(owner), {data, numel, dtype, {}}};
}

/// True if this process has a context on the device already. The driver's function is looked up at
/// run time, because the program is not linked with the driver.
bool has_context(int device) {
  constexpr unsigned kVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, kVersion,
                                       cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  unsigned flags = 0;
  int active = 0;
  const auto get_state = reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(function);
  return get_state(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

}  // namespace

void cuda_check(cudaError_t code, std::string_view call) {
  if (code == cudaSuccess) return;
  // Clear CUDA's last error: the next caller of cudaGetLastError() means another call.
  static_cast<void>(cudaGetLastError());
  throw DeviceError(
      concat(call, ": ", cudaGetErrorString(code), " (", cudaGetErrorName(code), ")"));
}

CudaDeviceScope::CudaDeviceScope(int device) : device_(device) {
  cuda_check(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ != device) cuda_check(cudaSetDevice(device), "cudaSetDevice");
}

CudaDeviceScope::~CudaDeviceScope() {
  // cudaSetDevice() creates a context of hundreds of megabytes where there is none. Without the
  // check, every rank would create one on the first GPU.
  if (before_ != device_ && has_context(before_)) cudaSetDevice(before_);
}

DeviceAllocator cuda_malloc_allocator(int device) {
  return [device](std::int64_t numel, DType dtype) -> Buffer {
    const CudaDeviceScope scope(device);
    const Block block{nullptr, numel, dtype, {DeviceType::kCuda, device}};
    void* data = nullptr;
    // An empty block gets an address too, because a null gradient means that there is none.
    const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(block.bytes(), 1));
    cuda_check(cudaMalloc(&data, bytes), concat("cudaMalloc of ", bytes, " bytes"));
    std::shared_ptr<void> owner(data, [](void* address) { cudaFree(address); });
    return {std::move(owner), {data, numel, dtype, block.device}};
  };
}

struct CudaStream::Failure {
  std::mutex mutex;
  std::exception_ptr error;  // guarded by mutex
};

CudaStream::CudaStream(CudaStreamOptions options)
    : options_(std::move(options)), failure_(std::make_shared<Failure>()) {
  const CudaDeviceScope scope(options_.device);
  if (!options_.allocate) options_.allocate = cuda_malloc_allocator(options_.device);
  if (!options_.native) owned_ = make_stream(options_.high_priority);
  native_ = options_.native.value_or(owned_.get());
}

CudaStream::~CudaStream() {
  try {
    const CudaDeviceScope scope(options_.device);
    cudaStreamSynchronize(as_stream(native_));
  } catch (const DeviceError&) {  // NOLINT(bugprone-empty-catch): nothing is left to wait for
  }
}

Device CudaStream::device() const { return {DeviceType::kCuda, options_.device}; }

void CudaStream::enter() { cuda_check(cudaSetDevice(options_.device), "cudaSetDevice"); }

void CudaStream::run(std::function<void()> work) {
  struct Call {
    std::function<void()> work;
    std::shared_ptr<Failure> failure;
  };
  const CudaDeviceScope scope(options_.device);
  const auto call = [](void* argument) {
    const std::unique_ptr<Call> mine(static_cast<Call*>(argument));
    {
      const std::lock_guard lock(mine->failure->mutex);
      if (mine->failure->error) return;
    }
    try {
      mine->work();
    } catch (...) {
      const std::lock_guard lock(mine->failure->mutex);
      mine->failure->error = std::current_exception();
    }
  };
  auto argument = std::make_unique<Call>(Call{std::move(work), failure_});
  cuda_check(cudaLaunchHostFunc(as_stream(native_), call, argument.get()), "cudaLaunchHostFunc");
  static_cast<void>(argument.release());
}

EventPtr CudaStream::record() {
  check();
  const CudaDeviceScope scope(options_.device);
  return std::make_shared<CudaEvent>(options_.device, as_stream(native_));
}

void CudaStream::wait(EventPtr event) {
  if (!event) return;
  const auto* const cuda_event = dynamic_cast<const CudaEvent*>(event.get());
  // The host waits, not the device; cuda_stream.hpp says why.
  if (cuda_event == nullptr) return event->wait();
  const CudaDeviceScope scope(options_.device);
  cuda_check(cudaStreamWaitEvent(as_stream(native_), cuda_event->get(), 0), "cudaStreamWaitEvent");
}

void CudaStream::copy(const Block& to, const ConstBlock& from) {
  if (to.bytes() != from.bytes()) throw std::logic_error("Stream::copy: the blocks differ in size");
  if (to.numel == 0) return;
  const CudaDeviceScope scope(options_.device);
  cuda_check(cudaMemcpyAsync(to.data, from.data, static_cast<std::size_t>(to.bytes()),
                             cudaMemcpyDefault, as_stream(native_)),
             "cudaMemcpyAsync");
}

void CudaStream::zero(const Block& block) {
  if (block.numel == 0) return;
  const CudaDeviceScope scope(options_.device);
  cuda_check(
      cudaMemsetAsync(block.data, 0, static_cast<std::size_t>(block.bytes()), as_stream(native_)),
      "cudaMemsetAsync");
}

Buffer CudaStream::allocate(std::int64_t numel, DType dtype) {
  Buffer memory = options_.allocate(numel, dtype);
  zero(memory.block());
  return memory;
}

Buffer CudaStream::allocate_host(std::int64_t numel, DType dtype) {
  return allocate_pinned(options_.device, numel, dtype);
}

void CudaStream::keep(std::shared_ptr<void> owner) {
  // Not record(), which throws when host work has failed: the device still works then and needs
  // `owner`.
  const CudaDeviceScope scope(options_.device);
  EventPtr event = std::make_shared<CudaEvent>(options_.device, as_stream(native_));
  {
    const std::lock_guard lock(mutex_);
    kept_.emplace_back(std::move(event), std::move(owner));
  }
  drop_done();
}

void CudaStream::drop_done() {
  // Declared before the lock, so that the owners are destroyed after the lock is released. An owner
  // may free memory, which waits for the device.
  std::deque<std::pair<EventPtr, std::shared_ptr<void>>> released;
  const std::lock_guard lock(mutex_);
  while (!kept_.empty() && kept_.front().first->done()) {
    released.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
}

void CudaStream::synchronize() {
  {
    const CudaDeviceScope scope(options_.device);
    cuda_check(cudaStreamSynchronize(as_stream(native_)), "work on the GPU");
  }
  drop_done();
  check();
}

void CudaStream::check() {
  const std::lock_guard lock(failure_->mutex);
  if (failure_->error) std::rethrow_exception(failure_->error);
}

std::unique_ptr<Stream> make_cuda_stream(const CudaStreamOptions& options) {
  const int count = num_cuda_devices();
  if (options.device >= count) {
    throw ConfigError(concat(
        to_string(Device{DeviceType::kCuda, options.device}), ": this process sees ", count,
        " GPUs, allowed: cpu", count > 0 ? concat(", cuda:0 to cuda:", count - 1) : "",
        "; nvidia-smi lists the GPUs of this machine, CUDA_VISIBLE_DEVICES hides some of them"));
  }
  return std::make_unique<CudaStream>(options);
}

std::string cuda_uuid(int device) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  const std::string digits = to_hex({properties.uuid.bytes, sizeof(properties.uuid.bytes)});
  return concat("GPU-", digits.substr(0, 8), "-", digits.substr(8, 4), "-", digits.substr(12, 4),
                "-", digits.substr(16, 4), "-", digits.substr(20));
}

int num_cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace gossamer
