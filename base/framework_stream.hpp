#pragma once
// A FrameworkStream gives work to the stream on which a framework of tensors computes, such as
// LibTorch or PyTorch. Work on a model's memory then runs in the framework's order, and its memory
// comes from the framework's allocator.
//
// The framework's current stream may change at any time, for each thread. So the owner of a
// stream calls set_current() after the framework's code has run, and before it gives the stream
// work.
//
// Thread safety: one thread at a time, as for every RelayStream.

#include <map>
#include <memory>

#include "base/cuda_stream.hpp"
#include "base/relay_stream.hpp"

namespace gossamer {

class FrameworkStream : public RelayStream {
 public:
  /// Passes work on to the CUDA stream `native` (a cudaStream_t) of `device`. `allocate` takes
  /// memory from the framework; empty: cuda_malloc_allocator(). On processors the work is done at
  /// once, and the other arguments count for nothing. Throws as make_cuda_stream().
  FrameworkStream(Device device, void* native, DeviceAllocator allocate);

  /// Passes all later work on to the stream `native`. Does nothing on processors.
  void set_current(void* native);

 private:
  FrameworkStream(Device device, DeviceAllocator allocate, std::shared_ptr<Stream> first);

  Device device_;
  DeviceAllocator allocate_;
  /// All streams that were current so far, by their native handles.
  std::map<void*, std::shared_ptr<Stream>> streams_;
};

}  // namespace gossamer
