#include "core/torch/graphed_step.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace gossamer {
namespace {

// The first traces, the second runs on the buckets, the third finds everything where it stays.
constexpr std::int64_t kStepsBefore = 3;

/// While it lives, backward() leaves gradients where they are.
class RecordingScope {
 public:
  explicit RecordingScope(DataParallelCore& core) : core_(core) { core_.set_recording(true); }
  ~RecordingScope() { core_.set_recording(false); }
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  DataParallelCore& core_;
};

bool alike(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) {
    return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type();
  });
}

}  // namespace

GraphedStep::GraphedStep(std::shared_ptr<DataParallelCore> core, std::unique_ptr<StepGraph> graph,
                         Forward forward)
    : core_(std::move(core)), graph_(std::move(graph)), forward_(std::move(forward)) {}

void GraphedStep::record(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& input : inputs) inputs_.push_back(input.clone());
  const RecordingScope recording(*core_);
  try {
    results_ = graph_->capture([this] {
      const at::Tensor loss = forward_(inputs_);
      loss.backward();
      std::vector<at::Tensor> results = core_->take_gradients();
      results.insert(results.begin(), loss.detach());
      return results;
    });
  } catch (...) {
    // Recorded, not computed.
    static_cast<void>(core_->take_gradients());
    inputs_.clear();
    throw;
  }
  last_inputs_.clear();
}

at::Tensor GraphedStep::step(const std::vector<at::Tensor>& inputs) {
  core_->adopt_written();
  const bool ready = num_steps_++ >= kStepsBefore;
  if (ready && !recorded() && alike(inputs, last_inputs_)) record(inputs);
  if (!recorded() || !alike(inputs, inputs_)) {
    if (!recorded()) last_inputs_ = inputs;
    const at::Tensor loss = forward_(inputs);
    loss.backward();
    return loss.detach();
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs_[i].copy_(inputs[i], /*non_blocking=*/true);
  }
  {
    const RecordingScope recording(*core_);
    graph_->replay();
  }
  core_->step_with(std::span(results_).subspan(1));
  // The next replay writes it anew.
  return results_.front().clone();
}

}  // namespace gossamer
