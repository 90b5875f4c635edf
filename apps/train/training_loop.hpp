#pragma once
// The training loop of one rank. All ranks run the same one, step for step; rank 0 also writes the
// run's folder and talks to the person.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "apps/data/dataset.hpp"
#include "apps/data/sharding.hpp"
#include "apps/train/evaluation.hpp"
#include "apps/train/progress_line.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/run_folder.hpp"
#include "apps/train/stop_signals.hpp"
#include "apps/train/summary.hpp"
#include "core/torch/data_parallel.hpp"
#include "core/torch/graphed_step.hpp"

namespace gossamer::apps {

class TrainingLoop {
 public:
  struct Setup {
    Communicator& communicator;
    World world;
    Logger logger;
    std::shared_ptr<const Dataset> data;
    /// Trace and plan only; see DataParallelOptions.
    bool dry_run = false;
    /// On rank 0: hears of every record of a step. Where it is set, nothing goes to the terminal,
    /// neither the progress nor the table at the end.
    std::function<void(const ProgressState&)> observer = nullptr;
    /// Signals that end the run. All ranks have it or none; it outlives the loop.
    const StopSignals* stop = nullptr;
  };

  /// Collective. `config` must outlive this.
  TrainingLoop(const RunConfig& config, const Setup& setup);

  /// Collective: one forward and backward on one batch; returns the loss of this rank, one number
  /// on the model's device.
  torch::Tensor train_step();
  /// Collective: trains to the end, evaluates, and fills the folder (nullptr except on rank 0).
  /// When a signal has come to any rank, all ranks throw JointFailure after the same step. What a
  /// run fails with stands in the folder's status, too.
  void run(RunFolder* folder);
  /// Collective: the last call of a training that has not failed; see Communicator::close().
  void close() { device_.close(); }

  [[nodiscard]] const DecentralizedDataParallel<Classifier>& model() const { return model_; }
  [[nodiscard]] std::int64_t total_steps() const { return total_steps_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Evaluation {
    Score mean_model;
    double worst_local = 0.0;
    double mean_local = 0.0;
    double consensus_distance = 0.0;
  };

  /// Sums since the last record.
  struct Window {
    double loss = 0.0;
    /// Steps whose loss is finite.
    std::int64_t num_losses = 0;
    /// Not in the sum yet: one number each, on a device where reading it waits for the step.
    std::vector<torch::Tensor> unread = {};
    /// Samples that this rank has used.
    std::int64_t samples = 0;
    /// Without logging and evaluation.
    double seconds = 0.0;
  };

  /// The loss of one batch.
  torch::Tensor forward(const torch::Tensor& inputs, const torch::Tensor& labels);
  [[nodiscard]] bool is_due(std::int64_t every) const;
  [[nodiscard]] double elapsed_s() const;
  /// Collective: root mean square over ranks of ||mean - x_i||.
  double measure_consensus();
  double root_mean_square(double distance);
  /// Collective. Calls `with_mean` while the model is the mean of all.
  Evaluation evaluate(const std::function<void()>& with_mean = nullptr);
  /// Collective: writes the model as it is into the folder.
  void save(RunFolder* folder);
  /// Makes a step and counts it.
  void advance();
  void write_step(RunFolder* folder);
  /// Adds the window's unread losses to its sum.
  void read_losses();
  void write_evaluation(RunFolder* folder, const Evaluation& evaluation) const;
  void train(RunFolder* folder);
  /// Collective, now and then: ends the run when a signal has come to any rank.
  void stop_if_asked();
  void finish(RunFolder* folder);
  void write_end(RunFolder& folder, const Evaluation& evaluation, const Summary& summary,
                 const std::vector<std::string>& checksums) const;
  [[nodiscard]] Json status(std::string_view state) const;
  void write_failure(const RunFolder& folder, const std::exception& error) const;

  const RunConfig& config_;
  Setup setup_;
  BatchSampler sampler_;
  std::int64_t total_steps_;
  TrainingDevice device_;
  std::shared_ptr<Classifier> classifier_;
  DecentralizedDataParallel<Classifier> model_;
  std::optional<GraphedStep> graphed_;
  ProgressLine progress_;
  std::int64_t step_ = 0;
  /// Samples that this rank has used.
  std::int64_t num_samples_ = 0;
  Window window_;
  Clock::time_point begin_ = Clock::now();
  /// Training alone: steps, without logging and evaluation.
  double train_s_ = 0.0;
  double forward_s_ = 0.0;
  double backward_s_ = 0.0;
  /// The learning rate of the last step made.
  double lr_ = 0.0;
  std::optional<double> last_consensus_;
  /// When ranks ask each other for signals: the last time, the next step, and steps in between. All
  /// ranks have the same steps.
  Clock::time_point last_asked_ = begin_;
  std::int64_t ask_at_ = 0;
  std::int64_t ask_every_ = 1;
};

}  // namespace gossamer::apps
