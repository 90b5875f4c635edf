#pragma once
// GraphedStep makes training steps whose forward and backward passes are recorded once and then
// replayed.
//
// The first three steps run as usual: they trace the order of gradients and warm LibTorch up. Then
// one step is recorded. From then on a step copies its inputs, replays the recorded work, and gives
// the recorded gradients to the pipeline, which mixes and updates as after any backward pass. The
// sweeps are not recorded, because learning rate, step counts and inboxes change from step to step;
// they are a few launches for every bucket. Exchanges have the whole next step, as in other steps.
//
// The forward pass must do the same work for every batch of one shape, and must never read a value
// from the device. After the first steps, GraphedStep records the first shape that comes twice in a
// row. Batches of another shape run as usual.
//
// Errors: what backward() throws (data_parallel.hpp), and StepGraph::capture() in the step
// that is recorded. Thread safety: only the rank's own thread may call.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/torch/data_parallel.hpp"
#include "core/torch/step_graph.hpp"

namespace gossamer {

class GraphedStep {
 public:
  /// Computes the loss of one batch, a tensor of one number.
  using Forward = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

  /// `core` belongs to the wrapper whose module `forward` calls.
  GraphedStep(std::shared_ptr<DataParallelCore> core, std::unique_ptr<StepGraph> graph,
              Forward forward);

  /// Collective. Makes one step: forward, backward, update. Returns the loss, one number on the
  /// model's device. Gradients must not be accumulated over several backward passes.
  at::Tensor step(const std::vector<at::Tensor>& inputs);
  /// True once a step has been recorded.
  [[nodiscard]] bool recorded() const { return !results_.empty(); }

 private:
  void record(const std::vector<at::Tensor>& inputs);

  std::shared_ptr<DataParallelCore> core_;
  std::unique_ptr<StepGraph> graph_;
  Forward forward_;
  std::int64_t num_steps_ = 0;
  /// The inputs of the step before; empty once a step has been recorded.
  std::vector<at::Tensor> last_inputs_;
  /// The tensors that the recorded step reads.
  std::vector<at::Tensor> inputs_;
  /// The tensors that the recorded step writes: the loss, then the gradients in declared order.
  std::vector<at::Tensor> results_;
};

}  // namespace gossamer
