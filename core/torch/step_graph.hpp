#pragma once
// A CUDA graph: work for a device, recorded once and launched again and again. Launching a graph
// takes one call. Without a graph, a step of a small model takes hundreds of calls, and the device
// may finish its work faster than the host can make these calls.
//
// Protocol: one capture(), then any number of replay(). Recorded work reads and writes the same
// addresses every time. Values that change from step to step must therefore be copied into tensors
// that stay. Not thread safe.

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/types.hpp"

namespace gossamer {

class StepGraph {
 public:
  /// Gives work to LibTorch, and returns the tensors that the work fills; some may be undefined.
  using Work = std::function<std::vector<at::Tensor>()>;

  virtual ~StepGraph() = default;
  /// Records the work that `work` gives to LibTorch in this thread and in autograd's threads,
  /// without running it. Returns the tensors of `work`; every replay() fills them. After a call
  /// that has not thrown, no other call may follow. Throws the errors of `work`, and LibTorch's
  /// errors for work that cannot be recorded: copies that the host waits for, and shapes that
  /// depend on values.
  virtual std::vector<at::Tensor> capture(const Work& work) = 0;
  /// Launches the recorded work. It runs after all work that this thread has given to LibTorch.
  virtual void replay() = 0;
};

/// Makes a graph for a GPU. Throws ConfigError for processors, and if libgossamer_torch_cuda.so
/// cannot be loaded; only builds with CUDA have this library.
std::unique_ptr<StepGraph> make_step_graph(Device device);

}  // namespace gossamer
