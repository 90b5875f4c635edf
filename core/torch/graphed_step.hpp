#pragma once
// Training steps whose forward and backward passes are recorded once and played back. The first
// steps run as usual: they trace the order of gradients and warm LibTorch up. Then one is recorded;
// from there on a step copies its inputs, replays, and hands the recorded gradients to the
// pipeline, which mixes and updates as after any backward pass: learning rate, step counts and
// inboxes change from step to step, so the sweeps are launched one by one, a few for every bucket.
// Exchanges have the whole next step, as always.
//
// What may be recorded: a forward pass that does the same for every batch of one shape and never
// reads a value from the device. After the first steps, the first shape that comes twice in a row
// is recorded; inputs of another one run as usual. Where recording fails, what it threw is thrown.
//
// Thread safety: the rank's own thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/torch/data_parallel.hpp"
#include "core/torch/step_graph.hpp"

namespace gossamer {

class GraphedStep {
 public:
  /// Of one batch; returns the loss, one number.
  using Forward = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

  /// `core`: of the wrapper whose module `forward` calls.
  GraphedStep(std::shared_ptr<DataParallelCore> core, std::unique_ptr<StepGraph> graph,
              Forward forward);

  /// Collective: forward, backward, update. Returns the loss on the model's device. Gradients must
  /// not be accumulated over several backward passes.
  at::Tensor step(const std::vector<at::Tensor>& inputs);
  /// Whether a step is recorded yet.
  [[nodiscard]] bool recorded() const { return !results_.empty(); }

 private:
  void record(const std::vector<at::Tensor>& inputs);

  std::shared_ptr<DataParallelCore> core_;
  std::unique_ptr<StepGraph> graph_;
  Forward forward_;
  std::int64_t num_steps_ = 0;
  /// Of the step before, until one is recorded.
  std::vector<at::Tensor> last_inputs_;
  /// What the recorded step reads, and what it writes: the loss, then the gradients.
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> results_;
};

}  // namespace gossamer
