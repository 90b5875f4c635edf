// libgossamer_torch_cuda.so: what needs the interface of LibTorch's CUDA library. It is loaded
// after that library, whose symbols it finds then; the program is linked with neither.

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "core/torch/step_graph.hpp"

namespace gossamer {
namespace {

class CudaStepGraph : public StepGraph {
 public:
  explicit CudaStepGraph(c10::DeviceIndex device) : device_(device) {}

  std::vector<at::Tensor> capture(const Work& work) override {
    const c10::cuda::CUDAGuard device(device_);
    // Recording needs a stream other than the default one, and begins where all is done.
    c10::cuda::device_synchronize();
    // Recorded work gets memory of its own, which the cached blocks of the steps before would keep
    // from it.
    c10::cuda::CUDACachingAllocator::emptyCache();
    const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool(false, device_));
    // Other threads, the progress worker among them, go on asking their events meanwhile.
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    std::vector<at::Tensor> results;
    try {
      results = work();
    } catch (...) {
      try {
        graph_.capture_end();
        graph_.reset();
      } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): the first error says more
      }
      throw;
    }
    graph_.capture_end();
    return results;
  }

  void replay() override { graph_.replay(); }

 private:
  c10::DeviceIndex device_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace
}  // namespace gossamer

/// The caller owns it. Visible, although the project hides its symbols: step_graph.cpp looks it up.
extern "C" __attribute__((visibility("default"))) gossamer::StepGraph* gossamer_make_cuda_graph(
    int device) {
  return new gossamer::CudaStepGraph(static_cast<c10::DeviceIndex>(device));
}
