#pragma once
// A stand-in for the part of CUDA's runtime that the project calls. Tests compile the project's
// CUDA code for processors against it, so that the code runs where there is no GPU.
//
// What it does as CUDA does:
//   - A stream is a thread, which sometimes is late. Events alone give an order between streams.
//   - The threads of a thread block are fibres. They run in a random order, and each runs until it
//     comes to a barrier. The blocks of a launch run one after another, in a random order.
//   - Device memory is out of the host's reach while no kernel and no copy runs, every eighth time.
//     New and freed memory is NaN.
//   - A copy from or to pageable memory, and a copy within the host, waits until it is done.
//   - cudaFree(), cudaFreeHost() and the first launch of a kernel let no other call begin and wait
//     until the device is idle. A deadlock ends the process, with a message.
//   - One thread calls the host functions of all streams. The process ends if a host function calls
//     CUDA.
//   - A launch with no blocks, too many threads, or too many bytes of parameters is refused.
//
// What it cannot show: speed; races between the threads of one block that no order of whole pieces
// between barriers shows; kernels that read host memory; misaligned accesses; several devices; the
// default stream's waits for other streams; CUDA graphs. It must not run under sanitizers, which do
// not know its fibres.

#include <cstddef>
#include <cstdint>
#include <functional>

#include <cuda_runtime_api.h>

namespace standin {

/// Ends the process: the program has broken one of CUDA's rules.
[[noreturn]] void fail(const char* what);

/// The kernels that the process has launched so far.
std::int64_t num_launches();

// ---- what the stand-in's parts share ----

enum class MemoryKind { kPageable, kPinned, kDevice };
MemoryKind kind_of(const void* address);

/// Memory of the device; null where there is not enough. Filled with NaN.
void* allocate_device(std::size_t bytes);
/// Pinned memory of the host; null where there is not enough.
void* allocate_pinned(std::size_t bytes);
/// Frees either. Does nothing for null.
void release(void* address);

/// Work of the device may touch device memory while such an object lives.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

/// Runs a kernel on the calling thread: `thread` once for each thread of the grid.
void run_grid(unsigned num_blocks, unsigned num_threads, const std::function<void()>& thread);

}  // namespace standin
