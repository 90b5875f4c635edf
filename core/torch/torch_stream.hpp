#pragma once
// A TorchStream gives work to the stream on which LibTorch itself computes. Work on a model's
// memory then runs in LibTorch's order, and its memory comes from LibTorch's caching allocator.
//
// The program is not linked with LibTorch's CUDA library. It loads the library when a GPU is asked
// for.
//
// Thread safety: one thread at a time, as for every RelayStream.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "base/framework_stream.hpp"
#include "base/types.hpp"

namespace gossamer {

/// Loads LibTorch's CUDA library. Call this before all other uses of LibTorch: LibTorch looks once
/// whether it has that library, for example in torch::manual_seed(), and remembers the answer. Does
/// nothing in a build without CUDA. Throws ConfigError if the library cannot be loaded, or comes
/// too late.
void load_torch_cuda();

/// Calls load_torch_cuda(), and makes `device` the current device of this thread. A thread needs
/// both before it first uses LibTorch on that GPU. Does nothing for processors. Throws ConfigError
/// as load_torch_cuda(), if this program was built without CUDA, and if there is no such GPU.
void use_torch_device(Device device);

/// The stream on which LibTorch computes. The caller's code may switch LibTorch's current stream at
/// any time, for each thread. After such code has run, call update_current() before you give work
/// to this stream.
class TorchStream : public FrameworkStream {
 public:
  /// Passes work on to the stream on which LibTorch computes on `device` in this thread now. On
  /// processors the work is done at once. Throws like use_torch_device().
  explicit TorchStream(Device device);

  /// Passes all later work on to LibTorch's current stream of the calling thread.
  void update_current();
  /// Makes LibTorch's allocator keep the tensor's memory until the work that this stream has been
  /// given so far is done.
  void keep_for_current(const at::Tensor& tensor);
};

/// The device in LibTorch's type.
c10::Device torch_device(Device device);
/// The device in the project's type. Throws ConfigError for a device that is neither a processor
/// nor a CUDA GPU.
Device device_of(const c10::Device& device);

}  // namespace gossamer
