#pragma once
// The model of a rank and the steps that train it: batch, forward, backward, update, moving
// average.
//
// The object owns the device, the wrapped model and what belongs to a step: the loss scaler, the
// recorded graph, the moving average, the timeline. It adds up what a record needs (TrainingWindow,
// StepTimes) and writes no records itself.
//
// Errors: NonFiniteError, CommError, JointFailure; ConfigError, which leaves the constructor on all
// ranks together. Thread safety: the rank's own thread only.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "apps/models/losses.hpp"
#include "apps/models/models.hpp"
#include "apps/train/data_plan.hpp"
#include "apps/train/device_choice.hpp"
#include "apps/train/model_ema.hpp"
#include "apps/train/precision.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/training_setup.hpp"
#include "core/torch/data_parallel.hpp"
#include "core/torch/graphed_step.hpp"
#include "core/trace/step_timeline.hpp"

namespace gossamer::apps {

/// Sums since the last record.
struct TrainingWindow {
  double loss = 0.0;
  /// Steps whose loss is finite.
  std::int64_t num_losses = 0;
  /// The first of these losses.
  double first_loss = 0.0;
  /// Losses that `loss` does not include yet, one number each. On a GPU, reading a number waits for
  /// its step.
  std::vector<torch::Tensor> unread = {};
  /// Samples that this rank has used.
  std::int64_t samples = 0;
  std::int64_t steps = 0;
  /// Seconds in steps, without logging and evaluation.
  double seconds = 0.0;

  /// Adds the unread losses to the sum. Losses that are not finite are left out.
  void read_losses();
};

/// Seconds since the run began, also before it was resumed.
struct StepTimes {
  /// Steps, without logging and evaluation.
  double train_s = 0.0;
  double forward_s = 0.0;
  double backward_s = 0.0;
};

class StepRunner {
 public:
  /// Collective. All arguments must outlive this object.
  StepRunner(const RunConfig& config, const TrainingSetup& setup, DataPlan& data);

  /// Collective. Makes one step on the next batches. Returns the loss of this rank, one number on
  /// the model's device.
  torch::Tensor train_step();
  /// Collective. Makes one step, and adds its time and its loss to the window.
  void advance();
  /// The moving average takes the last step in, where that step was held and has its update now.
  void commit_ema();
  /// Collective in some steps: starts and ends the recording of steps, if there is a timeline. The
  /// caller calls it before every step, and with `is_over` after the last one.
  void advance_timeline(bool is_over);
  /// Shows the visitor the model and the step counts.
  void visit_model(StateVisitor& visitor);
  /// Shows the visitor the sums of the window, the loss scaler and the moving average.
  void visit_sums(StateVisitor& visitor);
  /// Shows the visitor the seconds, on which nothing that is computed depends.
  void visit_times(StateVisitor& visitor);

  [[nodiscard]] DecentralizedDataParallel<Model>& model() { return model_; }
  [[nodiscard]] const DecentralizedDataParallel<Model>& model() const { return model_; }
  [[nodiscard]] Model& net() { return *net_; }
  [[nodiscard]] TrainingDevice& device() { return device_; }
  [[nodiscard]] const LossEntry& loss() const { return loss_; }
  /// The timeline; null without log.timeline.
  [[nodiscard]] Timeline* timeline() const {
    return step_timeline_ ? step_timeline_->timeline().get() : nullptr;
  }
  /// The recording of steps; empty without log.timeline.
  [[nodiscard]] std::optional<StepTimeline>& step_timeline() { return step_timeline_; }
  /// The moving average; empty without train.ema.
  [[nodiscard]] std::optional<ModelEma>& ema() { return ema_; }
  [[nodiscard]] TrainingWindow& window() { return window_; }
  [[nodiscard]] StepTimes& times() { return times_; }
  /// Samples that this rank has used since the run began.
  [[nodiscard]] std::int64_t num_samples() const { return num_samples_; }
  /// The learning rate of the last step.
  [[nodiscard]] double last_lr() const { return lr_; }
  /// Pipeline::recipe_factor().
  [[nodiscard]] double recipe_factor() const { return model_.engine().recipe_factor(); }
  /// Forgets what the steps of another run have added up.
  void begin_run();

 private:
  /// Returns the loss of one batch.
  torch::Tensor forward(const Batch& batch);
  /// The next batch, on the model's device.
  Batch next_batch(std::int64_t part);
  /// Forward and backward passes of the step's batches. Returns the mean loss.
  torch::Tensor forward_and_backward();
  /// Throws NonFiniteError, if this is what the run does with such a loss and the host knows it.
  void check_finite(const torch::Tensor& loss);
  /// The moving average takes the step in, once the step has its update.
  void update_ema();

  const RunConfig& config_;
  const TrainingSetup& setup_;
  DataPlan& data_;
  const LossEntry& loss_;
  TrainingDevice device_;
  std::optional<StepTimeline> step_timeline_;
  std::shared_ptr<Model> net_;
  DecentralizedDataParallel<Model> model_;
  std::optional<GraphedStep> graphed_;
  /// Present with device.precision: fp16.
  std::optional<LossScaler> scaler_;
  std::optional<ModelEma> ema_;
  /// The moving average does not include the last step yet, because that step is not committed
  /// (Pipeline::has_uncommitted_step()).
  bool owes_ema_ = false;
  TrainingWindow window_;
  StepTimes times_;
  std::int64_t num_samples_ = 0;
  double lr_ = 0.0;
};

}  // namespace gossamer::apps
