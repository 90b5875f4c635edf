// The runtime's calls: streams, events, copies, host functions, and the driver's locks.

#include "test/support/standin/standin.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

namespace {
using standin::fail;
using standin::MemoryKind;

/// Done when all work before it is.
using Mark = std::shared_future<void>;

thread_local bool in_host_function = false;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t refused(cudaError_t error) { return last_error = error; }

}  // namespace

/// A thread that does work in the order given. Streams stay until the process ends, so that use
/// after cudaStreamDestroy() is noticed.
struct CUstream_st {
 public:
  explicit CUstream_st(unsigned seed) : random_(seed) {
    std::thread([this] { work(); }).detach();
  }

  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (closed_) fail("a stream is used after cudaStreamDestroy()");
    work_.push_back(std::move(work));
    changed_.notify_one();
  }
  Mark mark() {
    const auto promise = std::make_shared<std::promise<void>>();
    Mark mark = promise->get_future().share();
    const std::lock_guard lock(mutex_);
    if (ended_) {
      promise->set_value();
    } else {
      work_.push_back([promise] { promise->set_value(); });
      changed_.notify_one();
    }
    return mark;
  }
  /// Returns at once; the work given so far is still done.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_one();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closed_ || !work_.empty(); });
      if (work_.empty()) break;
      auto next = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      // Late now and then: a wait that is missing then shows.
      if (random_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(150));
      next();
      next = nullptr;
      lock.lock();
    }
    ended_ = true;
  }

  std::minstd_rand random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_
  bool closed_ = false;                     // guarded by mutex_
  bool ended_ = false;                      // guarded by mutex_
};

/// What has been recorded last; nothing before the first record.
struct CUevent_st {
  std::mutex mutex;
  Mark mark;  // guarded by mutex

  Mark get() {
    const std::lock_guard lock(mutex);
    return mark;
  }
};

namespace {

bool is_done(const Mark& mark) {
  return !mark.valid() || mark.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

/// The device and its driver. Never destroyed, because threads of streams use it to the end.
class Driver {
 public:
  static Driver& get() {
    static auto* const kDriver = new Driver;
    return *kDriver;
  }

  CUstream_st& make_stream() {
    const std::lock_guard lock(mutex_);
    const auto seed = static_cast<unsigned>(streams_.size() + 1);
    return *streams_.emplace_back(std::make_unique<CUstream_st>(seed));
  }
  CUstream_st& stream_of(cudaStream_t stream) { return stream == nullptr ? *default_ : *stream; }

  /// After all work that any stream has been given so far.
  std::vector<Mark> marks() {
    const std::lock_guard lock(mutex_);
    std::vector<Mark> marks;
    for (const auto& stream : streams_) marks.push_back(stream->mark());
    return marks;
  }

  /// Called by the thread of a stream, which waits.
  void call_on_host(cudaHostFn_t function, void* argument) {
    host_functions_->push([function, argument] {
      in_host_function = true;
      function(argument);
      in_host_function = false;
    });
    host_functions_->mark().wait();
  }

  /// True for the first use of a kernel.
  bool load(const void* kernel) {
    const std::lock_guard lock(mutex_);
    return loaded_.insert(kernel).second;
  }

  /// Locked by every call for as long as it changes something.
  std::shared_mutex calls;

 private:
  Driver() : default_(&make_stream()) {}

  std::mutex mutex_;
  std::vector<std::unique_ptr<CUstream_st>> streams_;  // guarded by mutex_
  std::set<const void*> loaded_;                       // guarded by mutex_
  CUstream_st* default_;
  // No stream of the device: it works only while a stream waits for it.
  std::unique_ptr<CUstream_st> host_functions_ = std::make_unique<CUstream_st>(0);
};

/// A call that other calls may accompany.
class Call {
 public:
  Call() : lock_(Driver::get().calls, std::defer_lock) {
    if (in_host_function) fail("a host function calls CUDA");
    lock_.lock();
  }

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

/// A call that lets no other call begin and waits until the device is idle.
class DeviceCall {
 public:
  explicit DeviceCall(const char* name) {
    if (in_host_function) fail("a host function calls CUDA");
    Driver& driver = Driver::get();
    lock_ = std::unique_lock(driver.calls);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (const Mark& mark : driver.marks()) {
      if (mark.wait_until(limit) == std::future_status::ready) continue;
      const std::string text =
          std::string(name) +
          " waits for the device, and the device waits for a thread that cannot "
          "call CUDA meanwhile: a deadlock";
      fail(text.c_str());
    }
  }

 private:
  std::unique_lock<std::shared_mutex> lock_;
};

CUresult context_state(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

cudaError_t load_kernel(const void* kernel) {
  if (Driver::get().load(kernel)) const DeviceCall call("the first use of a kernel");
  return cudaSuccess;
}

}  // namespace

namespace standin {

void fail(const char* what) {
  std::fprintf(stderr, "stand-in for CUDA: %s\n", what);
  std::abort();
}

namespace {

std::atomic<std::int64_t> launches = 0;

}  // namespace

std::int64_t num_launches() { return launches; }

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> thread) {
  const unsigned num_blocks = config.gridDim.x;
  const unsigned num_threads = config.blockDim.x;
  if (num_blocks == 0 || num_threads == 0 || num_threads > 1024) {
    return refused(cudaErrorInvalidConfiguration);
  }
  load_kernel(kernel);
  ++launches;
  const Call call;
  Driver::get().stream_of(config.stream).push([num_blocks, num_threads, body = std::move(thread)] {
    const DeviceAccess access;
    run_grid(num_blocks, num_threads, body);
  });
  return cudaSuccess;
}

}  // namespace standin

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the stand-in";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "another error";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  const Call call;
  return device == 0 ? cudaSuccess : refused(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0x17, sizeof(*properties));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  // Few, so that small blocks of the project's already fill more than one round of a grid.
  *value = 2;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  const Call call;
  *address = standin::allocate_device(bytes);
  return *address == nullptr ? refused(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  const DeviceCall call("cudaFree()");
  standin::release(address);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** address, std::size_t bytes, cudaStream_t) {
  const Call call;
  *address = standin::allocate_device(bytes);
  return *address == nullptr ? refused(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  const Call call;
  Driver::get().stream_of(stream).push([address] { standin::release(address); });
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  const Call call;
  *address = standin::allocate_pinned(bytes);
  return *address == nullptr ? refused(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFreeHost(void* address) {
  const DeviceCall call("cudaFreeHost()");
  standin::release(address);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const Call call;
  *stream = &Driver::get().make_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Call call;
  stream->close();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Mark mark;
  {
    const Call call;
    mark = Driver::get().stream_of(stream).mark();
  }
  mark.wait();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Call call;
  if (const Mark mark = event->get(); mark.valid()) {
    Driver::get().stream_of(stream).push([mark] { mark.wait(); });
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const MemoryKind kinds[] = {standin::kind_of(to), standin::kind_of(from)};
  Mark mark;
  {
    const Call call;
    CUstream_st& queue = Driver::get().stream_of(stream);
    queue.push([to, from, bytes] {
      const standin::DeviceAccess access;
      std::memmove(to, from, bytes);
    });
    const bool within_host = kinds[0] != MemoryKind::kDevice && kinds[1] != MemoryKind::kDevice;
    const bool pageable = kinds[0] == MemoryKind::kPageable || kinds[1] == MemoryKind::kPageable;
    if (within_host || pageable) mark = queue.mark();
  }
  if (mark.valid()) mark.wait();
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  const Call call;
  if (standin::kind_of(to) == MemoryKind::kPageable) return refused(cudaErrorInvalidValue);
  Driver::get().stream_of(stream).push([to, value, bytes] {
    const standin::DeviceAccess access;
    std::memset(to, value, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  const Call call;
  Driver::get().stream_of(stream).push(
      [function, argument] { Driver::get().call_on_host(function, argument); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const Call call;
  *event = std::make_unique<CUevent_st>().release();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Call call;
  const std::unique_ptr<CUevent_st> owner(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Call call;
  const std::lock_guard lock(event->mutex);
  event->mark = Driver::get().stream_of(stream).mark();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Call call;
  return is_done(event->get()) ? cudaSuccess : refused(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Mark mark;
  {
    const Call call;
    mark = event->get();
  }
  if (mark.valid()) mark.wait();
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  attributes->maxThreadsPerBlock = 1024;
  return load_kernel(kernel);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const std::string text = name;
  *found = cudaDriverEntryPointSuccess;
  if (text == "cuDevicePrimaryCtxGetState") {
    *function = reinterpret_cast<void*>(context_state);
  } else {
    *found = cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}
