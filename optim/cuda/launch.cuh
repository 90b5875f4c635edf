#pragma once
// What the kernels' launches share.

#include <cuda_runtime.h>

#include "base/cuda_check.hpp"
#include "base/stream.hpp"

namespace gossamer {

inline cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

inline void check_launch(const char* what) { cuda_check(cudaGetLastError(), what); }

/// Blocks of a grid that keeps the device busy, each of which works on many chunks.
inline unsigned persistent_blocks(const Stream& stream, std::int64_t num_chunks,
                                  int blocks_per_multiprocessor) {
  int count = 1;
  cuda_check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, stream.device().index),
             "cudaDeviceGetAttribute");
  const std::int64_t most = std::int64_t{count} * blocks_per_multiprocessor;
  return static_cast<unsigned>(num_chunks < most ? num_chunks : most);
}

}  // namespace gossamer
