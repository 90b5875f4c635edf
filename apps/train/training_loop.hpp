#pragma once
// The training loop of one rank. All ranks run the same loop, step for step. Rank 0 also writes the
// run's folder and the output for the user.
//
// The loop owns its parts and says what comes after what. Each part keeps its own state, and saves
// and loads it:
//
//   part                 does
//   DataPlan             deals samples out, counts steps
//   StepRunner           makes a step: batch, forward, backward, update
//   Evaluator            scores the models, measures the consensus distance, watches for divergence
//   PhaseControl         changes the algorithm and the topology
//   RunRecorder          writes records, the status and the end of the run
//   CheckpointControl    saves checkpoints, hears signals, stops the run
//   SurvivalControl      goes on without ranks that die, and with ranks that join
//
// A part knows the parts above it in this table and none below it, except that RunRecorder asks for
// what the last two add to the status.
//
// Under an asynchronous algorithm the ranks make different numbers of steps. The step of such a run
// is the mean number over the ranks, rounded down. Before each of its steps a rank looks whether a
// sum of all ranks' numbers has come (ControlSync::poll()). If this sum asks for a record, an
// evaluation, a checkpoint or the end, all ranks do it together. First they close their exchanges
// (drain()), so no rank waits in a step for the message of a rank that waits here.
//
// Errors: JointFailure on all ranks together (see exit_together()), CommError, NonFiniteError,
// CheckpointError; ConfigError, which leaves the constructor on all ranks together. Thread safety:
// the rank's own thread only.

#include <cstdint>
#include <memory>
#include <string>

#include "apps/records/run_folder.hpp"
#include "apps/train/checkpoint_control.hpp"
#include "apps/train/data_plan.hpp"
#include "apps/train/evaluator.hpp"
#include "apps/train/phase_control.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/run_recorder.hpp"
#include "apps/train/step_runner.hpp"
#include "apps/train/survival_control.hpp"
#include "apps/train/training_setup.hpp"

namespace gossamer::apps {

class TrainingLoop {
 public:
  using Setup = TrainingSetup;

  /// Collective. `config` must outlive this object.
  TrainingLoop(const RunConfig& config, const Setup& setup);

  /// Collective. Makes one step: forward and backward on the next batches. Returns the loss of this
  /// rank, one number on the model's device.
  torch::Tensor train_step() { return runner_.train_step(); }
  /// Collective. Trains to the end, evaluates, and fills the folder; `folder` is null on all ranks
  /// but rank 0, and on a rank that joins. If `checkpoint` is not empty, continues from this
  /// folder. If a signal has come to any rank, all ranks save a checkpoint and throw JointFailure
  /// after the same step. If a run fails, status.json has the error, too.
  void run(std::unique_ptr<RunFolder> folder, const std::string& checkpoint = "");
  /// Collective. The last call after a training that has not failed; see Communicator::close().
  void close() { runner_.device().close(); }

  [[nodiscard]] const DecentralizedDataParallel<Model>& model() const { return runner_.model(); }
  [[nodiscard]] std::int64_t total_steps() const { return data_.steps().total(); }
  /// The folder of the run, on the rank that is 0 at present; null: on another rank, and before
  /// run().
  [[nodiscard]] const RunFolder* folder() const { return recorder_.folder(); }

 private:
  /// Warns of data that are too few, or that say little.
  void warn_of_data() const;
  void train();
  /// Collective. The steps of a run whose ranks go in step.
  void train_in_step();
  /// Collective. What is between the steps of a run whose ranks go in step, and one step.
  void iterate();
  /// Collective. The steps of a run whose ranks do not go in step.
  void train_asynchronously();
  /// Takes note of the sum of all ranks' steps, where the ranks do not go in step.
  void note_steps_of_all(std::int64_t steps_of_all);
  void advance();
  /// The run has made its last step, and recorded it; the same on all ranks.
  [[nodiscard]] bool is_at_end() const;
  /// Collective in some steps: measures the consensus distance, by which the phase may change its
  /// topology.
  void control_consensus();
  /// Collective. What is due after a step: records and evaluations.
  void record();
  /// Collective. After a record: warns of a run that has diverged, once, or ends it.
  void stop_if_diverged();
  /// Collective. A signal to any rank ends the run between two batches.
  Evaluation evaluate();
  /// Collective. Evaluates, and writes the record.
  void evaluate_and_record();
  /// Collective. All that follows the last step.
  void end();
  /// Collective. Saves the models, evaluates them, and writes the end of the run.
  void finish();

  /// Shows the visitor all state of the run. Collective, as the visit of the model.
  void visit(StateVisitor& visitor);
  /// Throws if the run cannot go on from the step that has been loaded.
  void check_restored() const;
  /// Collective. Loads a checkpoint.
  void restore(const std::string& checkpoint);
  /// Collective. Saves the new state after --reshape. The folder then holds a checkpoint of the
  /// configuration that it gets next, so a run that dies can go on without --reshape.
  void keep_reshaped();

  const RunConfig& config_;
  Setup setup_;
  RunState state_;
  DataPlan data_;
  StepRunner runner_;
  Evaluator evaluator_;
  PhaseControl phases_;
  RunRecorder recorder_;
  CheckpointControl checkpoints_;
  SurvivalControl survival_;
};

}  // namespace gossamer::apps
