#pragma once
// What a device is given, recorded once and given to it again and again: a CUDA graph. Launching
// one takes a single call where a step of a small model takes hundreds, which the host may not be
// able to make as fast as the device works them off.
//
// Recorded work reads and writes the same addresses every time, so what changes from step to step
// must be copied into tensors that stay.

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/types.hpp"

namespace gossamer {

class StepGraph {
 public:
  using Work = std::function<std::vector<at::Tensor>()>;

  virtual ~StepGraph() = default;
  /// Records what `work` gives LibTorch in this thread and in autograd's; nothing of it runs. The
  /// tensors that `work` returns, or undefined ones, are filled by every replay(). Once,
  /// unless it has thrown. Throws what `work` throws, and LibTorch's errors for what cannot be
  /// recorded: copies that the host waits for, and shapes that depend on values.
  virtual std::vector<at::Tensor> capture(const Work& work) = 0;
  /// Gives the device what was recorded, behind all that LibTorch has been given in this thread.
  virtual void replay() = 0;
};

/// For a GPU. Throws ConfigError for processors, and where libgossamer_torch_cuda.so, which belongs
/// to builds with CUDA, cannot be loaded.
std::unique_ptr<StepGraph> make_step_graph(Device device);

}  // namespace gossamer
