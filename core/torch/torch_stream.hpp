#pragma once
// LibTorch's streams and memory as a Stream: work on a model's memory goes to the stream on which
// LibTorch itself computes, in its order, and memory comes from its caching allocator.
//
// The program is not linked with LibTorch's CUDA library: it is loaded when a GPU is asked for.

#include <memory>

#include <c10/core/Device.h>

#include "gossamer/core/base/stream.hpp"
#include "gossamer/core/base/types.hpp"

namespace gossamer {

/// Loads LibTorch's CUDA library and makes `device` this thread's own, both needed before the
/// thread's first use of LibTorch on that GPU. Nothing for processors. Throws ConfigError when this
/// program was built without CUDA, the library cannot be loaded, or there is no such GPU.
void use_torch_device(Device device);

/// The stream on which LibTorch computes on `device` in this thread, now; on processors one whose
/// work is done at once. Throws as use_torch_device().
std::unique_ptr<Stream> current_torch_stream(Device device);

c10::Device torch_device(Device device);
/// Throws ConfigError for a device that is neither a processor nor a GPU of CUDA.
Device device_of(const c10::Device& device);

}  // namespace gossamer
