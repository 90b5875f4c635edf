#pragma once
// Decides when a run saves checkpoints, and when it stops. The ranks share the status of signals,
// of the clock and of what has been written (ControlSync), and act upon it together.
//
// Protocol, the same on all ranks:
//   1. open() in every new world, and close_world() before it.
//   2. Between two steps: meet(), and start() where is_due().
//   3. At the end: leave_meetings(), then finish().
// Example of three ranks: rank 1 catches SIGTERM. Its status arrives with the next meeting, after
// which all three save the checkpoint of the same step and throw the same JointFailure.
//
// Errors: JointFailure where the run stops, CommError. Thread safety: the rank's own thread only.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/checkpointer.hpp"
#include "apps/train/control_sync.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/run_recorder.hpp"
#include "apps/train/step_runner.hpp"
#include "apps/train/training_setup.hpp"
#include "base/error.hpp"
#include "base/state_visitor.hpp"

namespace gossamer::apps {

class CheckpointControl {
 public:
  /// Shows a visitor all state of the run.
  using Visit = std::function<void(StateVisitor&)>;

  /// Why a run stops, and with which exit code.
  struct Stop {
    std::string text;
    ExitCode code = ExitCode::kDone;
    /// True: a checkpoint holds all that has been trained.
    bool is_saved = false;
  };

  /// What read_signals() throws.
  struct Heard {
    ControlSync::Status status;
  };

  /// The references must outlive this object.
  CheckpointControl(const RunConfig& config, const TrainingSetup& setup, const StepCount& steps,
                    StepRunner& runner, RunRecorder& recorder, Visit visit);

  /// The run begins now.
  void begin() { last_checkpoint_ = Clock::now(); }
  /// Collective: begins to meet and to save in the present world, whose members are `members`,
  /// where the run does so.
  void open(const std::vector<std::int64_t>& members);
  /// Where ranks are lost: gives up what needs others.
  void close_world();
  /// On a rank that has taken a run's folder over: finds the newest checkpoint there.
  void find_newest();

  /// What this rank tells the others.
  [[nodiscard]] ControlSync::Status own_status();
  /// Collective in some steps, the same on all ranks: shares the status of signals and checkpoints,
  /// and acts upon them.
  void meet();
  /// Shares the status without waiting, where ranks do not go in step; see ControlSync::poll().
  std::optional<ControlSync::Status> poll() { return control_->poll(own_status()); }
  /// True if the ranks have something to do together.
  [[nodiscard]] bool asks_for_something(const ControlSync::Status& status) const;
  /// Collective, with the same status on all ranks.
  void act_upon(const ControlSync::Status& status);
  /// Collective, before batch number `batch` of an evaluation. Throws Heard if a signal has come.
  void read_signals(std::int64_t batch);
  /// Collective. Meetings count steps or batches anew.
  void leave_meetings();

  /// True if run.checkpoint_every asks for a checkpoint before this step.
  [[nodiscard]] bool is_due() const;
  /// A checkpoint is being written; the same on all ranks.
  [[nodiscard]] bool is_under_way() const { return checkpointer_ && checkpointer_->under_way(); }
  /// The loop saves checkpoints in this world.
  [[nodiscard]] bool saves() const { return checkpointer_.has_value(); }
  /// Collective. Ends the checkpoint under way, if any, and begins one of this step, which is then
  /// written in the background.
  void start();
  /// Collective. Saves a checkpoint of this step, if there is none yet, and waits for it. Returns
  /// the error; empty if there is none.
  std::string save();
  /// Collective. Saves the last checkpoint, and waits until nothing is being written.
  void finish();
  /// Collective. Waits until nothing is being written.
  void wait();

  /// Collective. Ends the run after a signal: saves a checkpoint, and throws JointFailure.
  [[noreturn]] void stop(const ControlSync::Status& status);
  /// Collective. Ends the run when all ranks have come here. Throws JointFailure.
  [[noreturn]] void leave_with(const Stop& stop);
  /// Throws the JointFailure of the stop that leave_with() has begun.
  [[noreturn]] void leave_now();
  /// This rank knows that the run stops, and the ranks have not all agreed yet.
  [[nodiscard]] bool is_stopping() const { return stop_.has_value(); }
  /// The run goes on after all: the ranks that were stopping are lost.
  void go_on() { stop_.reset(); }

  /// The step of the checkpoint from which the run continues; -1: none.
  [[nodiscard]] std::int64_t restored_step() const { return restored_step_; }
  void note_restored() { restored_step_ = steps_.run(); }

  /// Adds to status.json the newest checkpoint and the errors of checkpoints that could not be
  /// saved.
  void add_status(Json& status, std::vector<std::string>& faults);
  /// Shows the visitor what ranks have in common, for a rank that takes over what rank 0 says.
  void visit_common(StateVisitor& visitor);

 private:
  using Clock = std::chrono::steady_clock;

  /// Collective. The work of start(), where none is under way.
  void begin_checkpoint();
  /// True if all ranks have written their parts of the checkpoint under way.
  [[nodiscard]] bool has_been_written(const ControlSync::Status& status) const;
  /// The command that continues the run.
  [[nodiscard]] std::string how_to_continue() const;
  /// Collective. Throws JointFailure if a checkpoint could not be saved and this ends the run.
  void end_if_failed();

  const RunConfig& config_;
  const TrainingSetup& setup_;
  const StepCount& steps_;
  StepRunner& runner_;
  RunRecorder& recorder_;
  Visit visit_;
  /// Present while the run trains, if the loop hears signals or the ranks do not go in step.
  std::optional<ControlSync> control_;
  /// Present while the run trains, if the loop saves checkpoints.
  std::optional<Checkpointer> checkpointer_;
  /// A checkpoint was given up because ranks were lost, and is to be made again.
  bool owes_checkpoint_ = false;
  /// Where ranks were lost: what is known of earlier checkpoints.
  Checkpointer::History history_;
  /// The time at which the last checkpoint began.
  Clock::time_point last_checkpoint_ = Clock::now();
  std::int64_t restored_step_ = -1;
  /// The step of the last checkpoint that save() has saved; -1: none.
  std::int64_t saved_step_ = -1;
  /// The signals that end the run. The rank that caught a signal may be lost by then.
  ControlSync::Status signals_ = {};
  /// Why the run stops, from when this rank knows until all ranks have agreed.
  std::optional<Stop> stop_;
};

}  // namespace gossamer::apps
