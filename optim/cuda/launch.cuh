#pragma once
// Helpers for launching kernels.

#include <cuda_runtime.h>

#include "base/cuda_check.hpp"
#include "base/stream.hpp"

namespace gossamer {

inline cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

inline void check_launch(const char* what) { cuda_check(cudaGetLastError(), what); }

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
