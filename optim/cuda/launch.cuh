#pragma once
// Helpers for launching kernels. The sources in this folder are plain C++, without nvcc's syntax
// for launches: tests compile them for processors, against a stand-in for CUDA's headers
// (test/support/standin).

#include <cuda_runtime.h>

#include "base/cuda_check.hpp"
#include "base/stream.hpp"

namespace gossamer {

inline cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

/// The thread blocks of a launch, and the threads of each.
struct LaunchSize {
  unsigned blocks = 1;
  int threads = 0;
};

/// Throws DeviceError, which says `what`, where CUDA refuses the launch.
template <class... Parameters, class... Arguments>
void launch_kernel(const char* what, const Stream& stream, const LaunchSize& size,
                   void (*kernel)(Parameters...), const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(size.blocks);
  config.blockDim = dim3(static_cast<unsigned>(size.threads));
  config.stream = native(stream);
  cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

/// Loads a kernel to the current device.
template <class... Parameters>
void load_kernel(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  cuda_check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
             "cudaFuncGetAttributes");
}

// The parts of cuda_load_kernels().
void load_conversions();
void load_reductions();
void load_summands();

/// The number of thread blocks of a persistent grid: enough to keep the device busy, so that each
/// block works on many chunks, and no more than there are chunks.
inline unsigned persistent_blocks(const Stream& stream, std::int64_t num_chunks,
                                  int blocks_per_multiprocessor) {
  int count = 1;
  cuda_check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, stream.device().index),
             "cudaDeviceGetAttribute");
  const std::int64_t most = std::int64_t{count} * blocks_per_multiprocessor;
  return static_cast<unsigned>(num_chunks < most ? num_chunks : most);
}

}  // namespace gossamer
