#pragma once
// How well the models of the ranks do: evaluations, the consensus distance, the best model so far,
// and whether the run diverges. All ranks hear the same numbers and come to the same results.
//
// Errors: CommError, CheckpointError, JointFailure, and what the caller's `before_batch` throws.
// Thread safety: the rank's own thread only.

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "apps/records/run_folder.hpp"
#include "apps/train/divergence.hpp"
#include "apps/train/evaluation.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/step_count.hpp"
#include "apps/train/step_runner.hpp"
#include "apps/train/training_setup.hpp"

namespace gossamer::apps {

/// How far the ranks' models are apart; the same on all ranks.
struct Consensus {
  /// The root mean square over ranks of ||mean - x_i||.
  double distance = 0.0;
  /// ||mean||
  double norm = 0.0;
};

class Evaluator {
 public:
  /// All arguments must outlive this object.
  Evaluator(const RunConfig& config, const TrainingSetup& setup, StepRunner& runner,
            const StepCount& steps);

  /// Collective.
  Consensus measure_consensus();
  /// Collective. Evaluates the ranks' models and their mean, and keeps the mean model if it is the
  /// best so far, unless this step has been evaluated before. `folder` is null on all ranks but
  /// rank 0. The evaluation calls `before_batch` before every batch, equally often on all ranks;
  /// the caller's error ends the evaluation. The result counts from count() on, so an evaluation in
  /// which ranks are lost can be repeated.
  Evaluation evaluate(RunFolder* folder, const std::function<void()>& before_batch);
  /// Counts the evaluation, unless this step has been evaluated before.
  void count(const Evaluation& evaluation);
  /// Collective. Saves the mean model, and the moving average if there is one.
  void save_models(RunFolder* folder);
  /// Notes that this step has a record of its evaluation.
  void note_record() { recorded_step_ = steps_.run(); }
  /// True if this step has a record of its evaluation.
  [[nodiscard]] bool has_record() const { return recorded_step_ == steps_.run(); }
  /// True if an evaluation is due at `restored`, the step of the checkpoint from which the run
  /// continues. The run may have ended in it, or just before it.
  [[nodiscard]] bool is_due_after_resume(std::int64_t restored) const;
  /// True if train.patience ends the run; the same on all ranks.
  [[nodiscard]] bool is_out_of_patience() const {
    return config_.patience > 0 && num_worse_ >= config_.patience;
  }

  [[nodiscard]] Divergence& divergence() { return divergence_; }
  [[nodiscard]] const Divergence& divergence() const { return divergence_; }
  /// The step of the best evaluation; 0: none.
  [[nodiscard]] std::int64_t best_step() const { return best_step_; }
  /// Evaluations since the best.
  [[nodiscard]] std::int64_t num_worse() const { return num_worse_; }

  /// Shows the visitor the best evaluation and the beginning of a divergence.
  void visit(StateVisitor& visitor);
  /// Shows the visitor what visit() shows, for a rank that takes over what rank 0 says.
  void visit_common(StateVisitor& visitor);

 private:
  /// Collective. The work of measure_consensus(), where the model is the mean already.
  Consensus consensus_in(const AverageScope& scope);
  /// Collective. Writes a model into the folder, under this name.
  void save(RunFolder* folder, std::string_view name, const std::vector<NamedTensor>& tensors);
  /// True if the mean model's loss is the least so far, and this step has not been evaluated
  /// before; the same on all ranks, which have added the same sums.
  [[nodiscard]] bool is_best(const Evaluation& evaluation) const;

  const RunConfig& config_;
  const TrainingSetup& setup_;
  StepRunner& runner_;
  const StepCount& steps_;
  Divergence divergence_;
  /// The least loss of the mean model at an evaluation, and the step of this evaluation; 0: none.
  double best_loss_ = 0.0;
  std::int64_t best_step_ = 0;
  std::int64_t num_worse_ = 0;
  /// The step of the last record of an evaluation; -1: none.
  std::int64_t recorded_step_ = -1;
};

}  // namespace gossamer::apps
