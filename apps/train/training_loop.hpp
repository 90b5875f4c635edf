#pragma once
// The training loop of one rank. All ranks run the same loop, step for step. Rank 0 also writes the
// run's folder and the output for the user.
//
// Under an asynchronous algorithm the ranks make different numbers of steps. The step of such a run
// is the mean number over the ranks, rounded down. Before each of its steps a rank looks whether a
// sum of all ranks' numbers has come (Meetings::poll()). If this sum asks for a record, an
// evaluation, a checkpoint or the end, all ranks do it together: first they close their mailboxes
// (drain()), so no rank waits in a step for the letter of a rank that waits here.
//
// Errors: JointFailure on all ranks together (see leaving_together()), CommError, NonFiniteError,
// CheckpointError; ConfigError, which leaves the constructor on all ranks together. Thread safety:
// the rank's own thread only.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/data/dataset.hpp"
#include "apps/train/batch_loader.hpp"
#include "apps/train/checkpointer.hpp"
#include "apps/train/divergence.hpp"
#include "apps/train/evaluation.hpp"
#include "apps/train/loss_scaler.hpp"
#include "apps/train/meetings.hpp"
#include "apps/train/model_ema.hpp"
#include "apps/train/progress_line.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/run_folder.hpp"
#include "apps/train/step_count.hpp"
#include "apps/train/stop_signals.hpp"
#include "apps/train/summary.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/torch/data_parallel.hpp"
#include "core/torch/graphed_step.hpp"
#include "core/trace/step_timeline.hpp"

namespace gossamer::apps {

class TrainingLoop {
 public:
  struct Setup {
    Communicator& communicator;
    World world;
    Logger logger;
    std::shared_ptr<const Dataset> data;
    /// True: trace and plan only; see DataParallelOptions.
    bool dry_run = false;
    /// On rank 0: called with every record of a step. If it is set, the loop writes neither the
    /// progress nor the table at the end to the terminal.
    std::function<void(const ProgressState&)> observer = nullptr;
    /// Signals that end the run; null: none. Must be set on all ranks or on none, and outlive the
    /// loop.
    const StopSignals* stop = nullptr;
    /// True: save checkpoints as the configuration says. Needs `stop`.
    bool saves_checkpoints = false;
    /// True: run() continues from a checkpoint, so initial values do not matter.
    bool resumes = false;
    /// True: all ranks continue from the mean of the states of the checkpoint's ranks.
    bool reshapes = false;
    /// Things that went wrong before the loop, for status.json.
    std::vector<std::string> faults = {};
    /// True: this rank joins others that train (Communicator::is_elastic()). The constructor is not
    /// collective then.
    bool joins = false;
    /// The command that continues a run of so many ranks. `resume` is `gossamer train --resume
    /// RUN`. Null: the advice is for threads, or for mpirun under MPI.
    std::function<std::string(const std::string& resume, int size)> resume_command = nullptr;
  };

  /// Collective. `config` must outlive this object.
  TrainingLoop(const RunConfig& config, const Setup& setup);

  /// Collective. Makes one step: forward and backward on the next batches. Returns the loss of this
  /// rank, one number on the model's device.
  torch::Tensor train_step();
  /// Collective. Trains to the end, evaluates, and fills the folder; `folder` is null on
  /// all ranks but rank 0, and on a rank that joins. If `checkpoint` is not empty, continues from
  /// this folder. If a signal has come to any rank, all ranks save a checkpoint and throw
  /// JointFailure after the same step. If a run fails, status.json has the error, too.
  void run(std::unique_ptr<RunFolder> folder, const std::string& checkpoint = "");
  /// Collective. The last call after a training that has not failed; see Communicator::close().
  void close() { device_.close(); }

  [[nodiscard]] const DecentralizedDataParallel<Model>& model() const { return model_; }
  [[nodiscard]] std::int64_t total_steps() const { return steps_.total(); }
  /// The folder of the run, on the rank that is 0 at present; null: on another rank, and before
  /// run().
  [[nodiscard]] const RunFolder* folder() const { return folder_.get(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// Sums since the last record.
  struct Window {
    double loss = 0.0;
    /// Steps whose loss is finite.
    std::int64_t num_losses = 0;
    /// Losses that the sum does not have yet, one number each. They are on a device where reading a
    /// number waits for its step.
    std::vector<torch::Tensor> unread = {};
    /// Samples that this rank has used.
    std::int64_t samples = 0;
    std::int64_t steps = 0;
    /// Seconds in steps, without logging and evaluation.
    double seconds = 0.0;
  };

  /// What hear_signals() throws.
  struct Heard {
    Meetings::News news;
  };

  /// Returns the loss of one batch.
  torch::Tensor forward(const Batch& batch);
  /// The next batch, on the model's device.
  Batch next_batch(std::int64_t part);
  /// Forward and backward passes of the step's batches. Returns the mean loss.
  torch::Tensor forward_and_backward();
  /// Throws NonFiniteError, if this is what the run does with such a loss and the host knows it.
  void check_finite(const torch::Tensor& loss);
  /// Seconds since run() began.
  [[nodiscard]] double elapsed_s() const;
  /// The run began so many seconds ago.
  void set_elapsed(double seconds);
  /// The average takes the step in, once the step has its update.
  void update_ema();
  /// Makes a step, and adds its time and loss to the window.
  void advance();
  /// Collective: begins the phase of the next step, if it is another one.
  void follow_phases();
  /// Collective. What is between the steps of a run whose ranks go in step, and one step.
  void iterate();
  /// The run has made its last step, and recorded it; the same on all ranks.
  [[nodiscard]] bool is_at_end() const;
  /// Collective. All that follows the last step.
  void end();
  /// Collective in some steps: measures the consensus distance, and changes the topology if the
  /// phase's consensus control says so.
  void control_consensus();
  /// Collective: goes on with a phase, on its dense or its sparse topology.
  void switch_to(std::size_t phase, bool is_sparse);
  /// Adds the window's unread losses to its sum.
  void read_losses();
  void train();
  /// Collective. The steps of a run whose ranks go in step.
  void train_in_step();
  /// Takes note of the sum of all ranks' steps, where the ranks do not go in step.
  void hear_steps(std::int64_t steps_of_all);
  /// Collective. The steps of a run whose ranks do not.
  void train_asynchronously();
  /// Collective. What is due after a step: records and evaluations.
  void record();
  /// Adds to environment.json, after the first step, how ranks of a host read each other's blocks.
  void note_sharing();

  // In training_data.cpp.

  /// How a run deals its data out from a step on.
  static WorldChange present_world(const RunConfig& config, const World& world, std::int64_t step);
  /// Counts the steps of the whole run.
  static StepCount make_steps(const RunConfig& config, const BatchLoader& batches);
  /// Deals the samples out. Throws ConfigError.
  static BatchLoader::Setup batches_of(const RunConfig& config, const Setup& setup,
                                       const std::vector<WorldChange>& changes);
  /// Deals the samples out as changes_ says, and scales the learning rate where it follows the
  /// number of ranks.
  void deal();
  /// Deals what is left of the epoch out to the present ranks from this step on.
  void deal_from(std::int64_t step);
  /// Goes on with the data where changes_ says, which a checkpoint has told. Deals what is left of
  /// the epoch anew where this run takes the data in another way. `total`: the steps that the run
  /// had, where its configuration had the same epochs.
  void deal_on(std::optional<std::int64_t> total);
  /// Shows the visitor how the data have been dealt out so far, if that has changed. Loading goes
  /// on from there.
  void visit_changes(StateVisitor& visitor);
  /// How the data were dealt out in the run of a checkpoint whose state tells of no changes.
  [[nodiscard]] WorldChange beginning_of(const Manifest& manifest) const;

  // In training_survival.cpp.

  /// Runs a part of the run. Where ranks are lost in it (PeerLost), goes on with those that are
  /// left, and leaves the part unfinished.
  void survive(const std::function<void()>& part);
  /// Collective of those that are left and of those that join: goes on in a new world.
  void recover(const PeerLost& lost);
  void go_on(const PeerLost& lost);
  /// Makes the steps alone that this rank lacks.
  void catch_up(std::int64_t step);
  /// Whether processes that ask to join are let in from now on, where the run is elastic.
  void admit(bool admits);
  /// Collective. All ranks go on in this world. May be repeated after a PeerLost.
  void enter(const Membership& membership);
  /// Collective: the ranks learn from rank 0 how the run has gone so far.
  void introduce(const Membership& membership);
  /// Collective. What the ranks have in common becomes rank 0's.
  void follow_first_rank(std::int64_t step);
  void visit_common(StateVisitor& visitor);
  /// Collective. Throws ConfigError on a rank whose topologies are not rank 0's; it leaves alone.
  void compare_topologies();
  /// Collective: the ranks learn from rank 0 where the folder is, and who writes it.
  void hear_of_folder();
  /// On rank 0: has the folder, perhaps in place of a rank that is lost.
  void open_folder();
  /// Tells the user and the folder who is in the world. `seconds`: the time that was lost.
  void tell_members(const std::string& reason, double seconds);
  /// On rank 0: writes who is in the world, and the members of `change`.
  void write_members(const Json& change);
  /// What is equal on all ranks of a run, on a few lines.
  [[nodiscard]] std::string description() const;

  // In training_records.cpp.

  /// The same on all ranks.
  struct Consensus {
    /// The root mean square over ranks of ||mean - x_i||.
    double distance = 0.0;
    /// ||mean||
    double norm = 0.0;
  };
  /// Collective.
  Consensus measure_consensus();
  /// Collective. The work of measure_consensus(), where the model is the mean already.
  Consensus consensus_in(const AverageScope& scope);
  /// Collective. After a record: warns of a run that has diverged, once, or ends it.
  void heed_divergence();
  /// Collective. Keeps the best model, unless this step has been evaluated before. A signal to any
  /// rank ends the run between two batches.
  Evaluation evaluate();
  /// Collective. The work of evaluate(). Throws Heard.
  Evaluation score_models();
  /// Collective. Called before every batch of an evaluation. Throws Heard if a signal has come.
  void hear_signals();
  /// Collective. Writes a model into the folder, under this name.
  void save(std::string_view name, const std::vector<NamedTensor>& tensors);
  /// Collective. Saves the mean model, and the moving average if there is one.
  void save_models();
  /// True if the mean model's loss is the least so far, and this step has not been evaluated
  /// before; the same on all ranks, which have added the same sums.
  [[nodiscard]] bool is_best(const Evaluation& evaluation) const;
  /// Counts the evaluation, unless this step has been evaluated before.
  void count_evaluation(const Evaluation& evaluation);
  /// Collective. Saves `mean`, the mean model, if it is the best.
  void keep_best(const Evaluation& evaluation, const std::vector<NamedTensor>& mean);
  /// Collective. Evaluates, and writes the record.
  void evaluate_and_record();
  /// True if an evaluation is due at the step of the checkpoint from which the run continues. The
  /// run may have ended in it, or just before it.
  [[nodiscard]] bool resumes_before_evaluation() const;
  /// True if train.patience ends the run; the same on all ranks.
  [[nodiscard]] bool is_out_of_patience() const {
    return config_.patience > 0 && num_worse_ >= config_.patience;
  }
  /// Writes into the folder while training goes on: an error is a warning, the first of several in
  /// a row alone.
  void write_or_warn(const std::function<void()>& write);
  /// Collective. Writes the record of the window, and starts a new window.
  void write_step();
  void write_evaluation(const Evaluation& evaluation);
  /// Collective in some steps: starts and ends the recording of steps, if there is a timeline.
  /// Called before every step, and with `is_over` after the last one.
  void follow_timeline(bool is_over);
  void finish();
  void write_end(RunFolder& folder, const Summary& summary,
                 const std::vector<std::string>& checksums);
  [[nodiscard]] Json status(std::string_view state);
  /// The share of the time in steps with others, where ranks may be lost.
  [[nodiscard]] double goodput() const {
    return std::clamp(1.0 - recovery_s_ / std::max(elapsed_s(), 1e-9), 0.0, 1.0);
  }
  void write_failure(const std::exception& error);

  // In training_state.cpp.

  /// Shows the visitor which phase it is. Loading is collective: the model goes on with the phase.
  void visit_phase(StateVisitor& visitor);
  /// Collective.
  void open_checkpoints();
  /// Shows the visitor the state of LibTorch's generator of random numbers.
  void visit_generator(StateVisitor& visitor) const;
  /// Shows the visitor all state of the run. Collective, as the visit of the model.
  void visit(StateVisitor& visitor);
  /// Throws if the run cannot go on from the step that has been loaded.
  void check_restored() const;
  /// The model's metrics, with those of the run before it was resumed.
  [[nodiscard]] PipelineMetrics total_metrics() const;
  /// Collective. Loads a checkpoint.
  void restore(const std::string& checkpoint);
  /// Collective. After --reshape: saves the new state, so that the folder holds a checkpoint of the
  /// configuration that it gets next, and the run can go on without --reshape if it dies.
  void keep_reshaped();
  /// Collective. Begins a checkpoint, which is then written in the background.
  void start_checkpoint();
  /// Collective. Saves a checkpoint of this step, if there is none yet, and waits for it. Returns
  /// the error; empty if there is none.
  std::string save_checkpoint();
  /// True if run.checkpoint_every asks for a checkpoint before this step.
  [[nodiscard]] bool checkpoint_is_due() const;
  /// What this rank tells the others.
  [[nodiscard]] Meetings::News own_news();
  /// Collective in some steps, the same on all ranks: shares news of signals and checkpoints, and
  /// acts upon them.
  void meet();
  /// True if all ranks have written their parts of the checkpoint under way.
  [[nodiscard]] bool has_been_written(const Meetings::News& news) const;
  /// True if the ranks have something to do together.
  [[nodiscard]] bool asks_for_something(const Meetings::News& news) const;
  /// Between two steps: lets those in that ask, unless a checkpoint is being written.
  void admit_others();
  /// Collective, with the same news on all ranks.
  void act_upon(const Meetings::News& news);
  /// Collective. Ends the run after a signal: saves a checkpoint, and throws JointFailure.
  [[noreturn]] void stop(const Meetings::News& news);
  /// Why a run stops, and with which exit code.
  struct Stop {
    std::string text;
    ExitCode code = ExitCode::kDone;
    /// A checkpoint holds all that has been trained.
    bool is_saved = false;
  };
  /// Collective. Ends the run when all ranks have come here. Throws JointFailure.
  [[noreturn]] void leave_with(const Stop& stop);
  /// Throws the JointFailure of `stopped_`.
  [[noreturn]] void leave_now();
  /// The command that continues the run.
  [[nodiscard]] std::string how_to_continue() const;
  /// Collective. Throws JointFailure if a checkpoint could not be saved and this ends the run.
  void end_if_checkpoint_failed();
  /// Collective. Saves the last checkpoint, and waits until nothing is being written.
  void close_checkpoints();

  const RunConfig& config_;
  Setup setup_;
  /// Every change in how the data are dealt out, in the order of steps; the first is of step 0.
  std::vector<WorldChange> changes_;
  /// The phases of the run, for the present world.
  std::vector<RunPhase> phases_;
  const LossEntry& loss_;
  /// The batches of this rank. Present after the constructor.
  std::optional<BatchLoader> batches_;
  StepCount steps_;
  TrainingDevice device_;
  /// Present with log.timeline.
  std::optional<StepTimeline> step_timeline_;
  /// Null without log.timeline.
  std::shared_ptr<Timeline> timeline_;
  std::shared_ptr<Model> net_;
  DecentralizedDataParallel<Model> model_;
  std::optional<GraphedStep> graphed_;
  /// Present with device.precision: fp16.
  std::optional<LossScaler> scaler_;
  /// Present with train.ema.
  std::optional<ModelEma> ema_;
  /// The moving average does not include the last step yet, because that step is held
  /// (Pipeline::holds_step()).
  bool owes_ema_ = false;
  /// The index of the present phase.
  std::size_t phase_ = 0;
  /// True: the phase's consensus control has chosen the sparse topology.
  bool is_sparse_ = false;
  ProgressLine progress_;
  /// Null except on rank 0.
  std::unique_ptr<RunFolder> folder_;
  /// Where the folder is, for a rank that takes it over. Known on rank 0, and after enter().
  std::string folder_path_;
  /// The process that writes the folder, as status.json names that process. Known where
  /// folder_path_ is known.
  std::string folder_writer_;
  /// The present world, where ranks may be lost. Without members: training has not begun.
  Membership membership_;
  /// The members of the world that last went on, and what changed when it did; null: no change so
  /// far.
  std::vector<std::int64_t> told_members_;
  Json last_change_ = nullptr;
  /// This rank has joined others.
  bool has_joined_ = false;
  /// This rank has trained to the end and saved its results (finish()).
  bool is_saved_ = false;
  /// All ranks have trained to the end and saved their results.
  bool has_ended_ = false;
  /// Why the run stops, from when this rank knows until all ranks have agreed.
  std::optional<Stop> stopped_;
  /// The signals that end the run. The rank that caught a signal may be lost by then.
  Meetings::News signals_ = {};
  /// The last step has been recorded.
  bool is_recorded_ = true;
  /// Seconds without a step, because ranks were lost or joined.
  double recovery_s_ = 0.0;
  /// When survive() has last ended a part.
  Clock::time_point last_part_ = Clock::now();
  /// Samples that this rank has used.
  std::int64_t num_samples_ = 0;
  Window window_;
  Clock::time_point begin_ = Clock::now();
  /// Seconds in steps, without logging and evaluation.
  double train_s_ = 0.0;
  double forward_s_ = 0.0;
  double backward_s_ = 0.0;
  /// The learning rate of the last step.
  double lr_ = 0.0;
  /// Seconds of waiting for peers, as of the last record.
  double last_wait_s_ = 0.0;
  std::optional<double> last_consensus_;
  Divergence divergence_;
  /// The least loss of the mean model at an evaluation, and the step of this evaluation; 0: none.
  double best_loss_ = 0.0;
  std::int64_t best_step_ = 0;
  /// Evaluations since the best.
  std::int64_t num_worse_ = 0;
  /// The step of the last record of an evaluation; -1: none.
  std::int64_t evaluated_step_ = -1;
  /// Batches of the evaluation under way.
  std::int64_t num_scored_ = 0;
  /// Steps left out because of a gradient that was not finite, as of the last record. Of all ranks,
  /// if each leaves out steps of its own.
  std::int64_t num_skipped_ = 0;
  /// Present while run() trains, if the loop hears signals or the ranks do not go in step.
  std::optional<Meetings> meetings_;
  /// Present while run() trains, if the loop saves checkpoints.
  std::optional<Checkpointer> checkpointer_;
  /// A checkpoint was given up because ranks were lost, and is to be made again.
  bool owes_checkpoint_ = false;
  /// Where ranks were lost: what is known of earlier checkpoints.
  Checkpointer::History checkpoint_history_;
  /// The time at which the last checkpoint began.
  Clock::time_point last_checkpoint_ = begin_;
  /// The step of the checkpoint from which the run continues; -1: none.
  std::int64_t restored_step_ = -1;
  /// The last write of write_or_warn() has failed.
  bool folder_is_broken_ = false;
  /// The step of the last checkpoint that save_checkpoint() has saved; -1: none.
  std::int64_t saved_step_ = -1;
  bool has_noted_sharing_ = false;
  /// Metrics of the run before it was resumed, and the bytes of consensus control.
  PipelineMetrics earlier_metrics_;
};

}  // namespace gossamer::apps
