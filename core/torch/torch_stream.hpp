#pragma once
// LibTorch's streams and memory as a Stream: work on a model's memory goes to the stream on which
// LibTorch itself computes, in its order, and memory comes from its caching allocator.
//
// The program is not linked with LibTorch's CUDA library: it is loaded when a GPU is asked for.

#include <map>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "base/relay_stream.hpp"
#include "base/types.hpp"

namespace gossamer {

/// Loads LibTorch's CUDA library and makes `device` this thread's own, both needed before the
/// thread's first use of LibTorch on that GPU. Nothing for processors. Throws ConfigError when this
/// program was built without CUDA, the library cannot be loaded, or there is no such GPU.
void use_torch_device(Device device);

/// The stream on which LibTorch computes. Its users may switch it at any time, thread by thread, so
/// whoever comes back from them calls follow_current() before giving work.
class TorchStream : public RelayStream {
 public:
  /// Passes on what it is given to the stream on which LibTorch computes on `device` in this
  /// thread, now. On processors work is done at once. Throws as use_torch_device().
  explicit TorchStream(Device device);

  /// From now on to the one that is current in the calling thread.
  void follow_current();
  /// LibTorch does not give the tensor's memory to others before the work is done that this stream
  /// has been given so far.
  void keep_for_current(const at::Tensor& tensor);

 private:
  TorchStream(Device device, std::shared_ptr<Stream> first);

  Device device_;
  /// By their native handles.
  std::map<void*, std::shared_ptr<Stream>> streams_;
};

c10::Device torch_device(Device device);
/// Throws ConfigError for a device that is neither a processor nor a GPU of CUDA.
Device device_of(const c10::Device& device);

}  // namespace gossamer
