#include "apps/train/checkpoint_control.hpp"

#include <csignal>
#include <utility>

#include "apps/train/agreement.hpp"
#include "apps/train/model_file.hpp"
#include "apps/train/resume.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"

namespace gossamer::apps {

CheckpointControl::CheckpointControl(const RunConfig& config, const TrainingSetup& setup,
                                     const StepCount& steps, StepRunner& runner,
                                     RunRecorder& recorder, Visit visit)
    : config_(config),
      setup_(setup),
      steps_(steps),
      runner_(runner),
      recorder_(recorder),
      visit_(std::move(visit)) {}

void CheckpointControl::open(const std::vector<std::int64_t>& members) {
  const bool meets = setup_.stop != nullptr || !steps_.in_step();
  if (!meets) return;
  control_.emplace(setup_.communicator);
  if (!setup_.saves_checkpoints) return;
  checkpointer_.emplace(Checkpointer::Setup{.communicator = setup_.communicator,
                                            .world = setup_.world,
                                            .logger = setup_.is_first() ? setup_.logger : Logger(),
                                            .folder = checkpoint_folder(recorder_.folder_path()),
                                            .keep = config_.checkpoints.keep,
                                            .run = values_for_manifest(config_),
                                            .members = members,
                                            .history = history_});
}

void CheckpointControl::close_world() {
  control_.reset();
  if (checkpointer_) {
    owes_checkpoint_ = owes_checkpoint_ || checkpointer_->under_way();
    history_ = checkpointer_->give_up();
  }
  checkpointer_.reset();
}

void CheckpointControl::find_newest() {
  const std::vector<std::string> saved =
      list_checkpoints(checkpoint_folder(recorder_.folder_path()));
  if (!saved.empty()) history_.newest = saved.back();
}

bool CheckpointControl::is_due() const {
  const std::int64_t every = config_.checkpoints.every_steps;
  return checkpointer_ && (owes_checkpoint_ || steps_.has_passed(every)) &&
         steps_.run() != restored_step_;
}

void CheckpointControl::start() {
  checkpointer_->finish();
  begin_checkpoint();
}

void CheckpointControl::begin_checkpoint() {
  const TimelineScope span(runner_.timeline(), {.what = "checkpoint"});
  // A rank that joined now would have to be in the checkpoint, which would begin anew.
  setup_.admit(false);
  last_checkpoint_ = Clock::now();
  owes_checkpoint_ = false;
  RunFolder* const folder = recorder_.folder();
  // Before any rank can write a file there.
  if (folder != nullptr) folder->begin();
  runner_.window().read_losses();
  std::vector<NamedTensor> model;
  {
    const AverageScope scope = runner_.model().global_average();
    if (setup_.is_first()) model = copy_to_host(runner_.net());
  }
  checkpointer_->start(
      steps_.run(), visit_, std::move(model),
      recorder_.has_best_model() ? concat(folder->path(), "/", RunFolder::kBestModel) : "");
}

std::string CheckpointControl::save() {
  // An earlier one may be under way.
  checkpointer_->wait();
  // Before its evaluation a run that is at its end has saved one.
  if (saved_step_ == steps_.run()) return "";
  begin_checkpoint();
  std::string error = checkpointer_->wait();
  if (error.empty()) saved_step_ = steps_.run();
  return error;
}

void CheckpointControl::wait() {
  if (checkpointer_) checkpointer_->wait();
}

void CheckpointControl::finish() {
  if (!checkpointer_) return;
  checkpointer_->wait();
  // The end of a long run, so that it can be made longer.
  const bool has_some = setup_.communicator.all_gather(checkpointer_->newest()).front() != "";
  if ((config_.checkpoints.given || has_some) && config_.checkpoints.enabled() &&
      steps_.run() != restored_step_) {
    save();
  }
  end_if_failed();
}

ControlSync::Status CheckpointControl::own_status() {
  const int caught = setup_.stop != nullptr ? setup_.stop->caught() : 0;
  const bool saves = checkpointer_.has_value();
  const bool writes = saves && checkpointer_->under_way();
  const double minutes = config_.checkpoints.every_minutes;
  const std::chrono::duration<double, std::ratio<60>> since = Clock::now() - last_checkpoint_;
  const bool is_due = setup_.is_first() && saves && !writes && steps_.run() > 0 && minutes > 0.0 &&
                      since.count() >= minutes;
  const bool has_failed =
      saves && config_.checkpoints.must_succeed && !checkpointer_->errors().empty();
  const auto heard = [](bool now, std::int64_t before) { return now || before > 0 ? 1 : 0; };
  return {.terminate = heard(caught == SIGTERM, signals_.terminate),
          .hang_up = heard(caught == SIGHUP, signals_.hang_up),
          .interrupt = heard(caught == SIGINT, signals_.interrupt),
          .preempt = heard(caught == SIGUSR1, signals_.preempt),
          .written = writes && checkpointer_->is_written() ? checkpointer_->step() : 0,
          .checkpoint_due = is_due ? 1 : 0,
          .checkpoint_failed = has_failed ? 1 : 0,
          .steps = steps_.own()};
}

void CheckpointControl::meet() {
  if (!control_ || !control_->is_due(steps_.run())) return;
  const auto status = control_->meet(steps_.run(), own_status());
  if (status) act_upon(*status);
}

void CheckpointControl::leave_meetings() {
  if (control_) control_->leave();
}

void CheckpointControl::read_signals(std::int64_t batch) {
  if (!control_ || !control_->is_due(batch)) return;
  const auto status = control_->meet(batch, own_status());
  if (status && status->num_signals() > 0) throw Heard{*status};
}

bool CheckpointControl::has_been_written(const ControlSync::Status& status) const {
  // Sums may be older than the checkpoint that is under way now.
  return is_under_way() && status.written == setup_.world.size * checkpointer_->step();
}

bool CheckpointControl::asks_for_something(const ControlSync::Status& status) const {
  return steps_.is_over() || steps_.is_due(config_.consensus_every) ||
         steps_.is_due(config_.log_every) || steps_.is_due(config_.unrecorded_every()) ||
         steps_.is_due(config_.eval_every) || is_due() || has_been_written(status) ||
         status.num_signals() > 0 || status.checkpoint_failed > 0 || status.checkpoint_due > 0;
}

void CheckpointControl::act_upon(const ControlSync::Status& status) {
  if (has_been_written(status)) checkpointer_->finish();
  if (status.num_signals() > 0) stop(status);
  if (status.checkpoint_failed > 0) {
    control_->leave();
    checkpointer_->wait();
    end_if_failed();
  }
  if (status.checkpoint_due > 0 && checkpointer_ && !checkpointer_->under_way()) {
    begin_checkpoint();
  }
}

void CheckpointControl::stop(const ControlSync::Status& status) {
  signals_ = status;
  setup_.admit(false);
  control_->leave();
  const auto [name, code] = status.terminate > 0   ? std::pair("SIGTERM", ExitCode::kTerminated)
                            : status.hang_up > 0   ? std::pair("SIGHUP", ExitCode::kTerminated)
                            : status.interrupt > 0 ? std::pair("SIGINT", ExitCode::kInterrupted)
                                                   : std::pair("SIGUSR1", ExitCode::kPreempted);
  const std::string text =
      concat("stopped by ", name, " after step ", steps_.run(), " of ", steps_.total());
  const bool saves = checkpointer_ && (status.preempt > 0 || config_.checkpoints.enabled());
  if (steps_.run() == 0 || !saves) {
    wait();
    runner_.model().drain();
    runner_.advance_timeline(/*is_over=*/true);
    leave_with({.text = text, .code = code});
  }
  const std::string error = save();
  runner_.model().drain();
  runner_.advance_timeline(/*is_over=*/true);
  if (!error.empty()) {
    leave_with({.text = concat(text, "; a checkpoint could not be saved: ", error),
                .code = ExitCode::kCheckpoint});
  }
  leave_with({.text = text, .code = ExitCode::kPreempted, .is_saved = true});
}

void CheckpointControl::leave_with(const Stop& stop) {
  stop_ = stop;
  setup_.admit(false);
  // Where a rank is lost before, the ranks that are left go on and come here again.
  if (setup_.communicator.is_elastic()) setup_.communicator.barrier();
  leave_now();
}

void CheckpointControl::leave_now() {
  std::string text = stop_->text;
  if (stop_->is_saved) {
    text += concat("; the checkpoint is saved; to continue, type: ", how_to_continue());
  }
  throw JointFailure(text, stop_->code);
}

std::string CheckpointControl::how_to_continue() const {
  const std::string& folder = recorder_.folder_path();
  if (folder.empty()) return "";
  const int size = setup_.world.size;
  const std::string resume = concat("gossamer train --resume ", shell_word(folder));
  if (setup_.resume_command) return setup_.resume_command(resume, size);
  const bool has_launcher = under_mpi_launcher();
  return concat(has_launcher ? concat("mpirun -n ", size, " ") : "", resume,
                has_launcher || size == 1 ? "" : concat(" --ranks ", size));
}

void CheckpointControl::end_if_failed() {
  if (!config_.checkpoints.must_succeed) return;
  const auto& errors = checkpointer_->errors();
  const std::string error =
      setup_.communicator.all_gather(errors.empty() ? "" : errors.front()).front();
  if (error.empty()) return;
  runner_.model().drain();
  leave_with({.text = concat("a checkpoint could not be saved: ", error,
                             "; run.checkpoint_failure: end lets that end the run after step ",
                             steps_.run()),
              .code = ExitCode::kCheckpoint});
}

void CheckpointControl::add_status(Json& status, std::vector<std::string>& faults) {
  if (!checkpointer_) return;
  if (!checkpointer_->newest().empty()) status["last_checkpoint"] = checkpointer_->newest();
  for (const std::string& error : checkpointer_->errors()) {
    faults.push_back("a checkpoint could not be saved: " + error);
  }
}

void CheckpointControl::visit_common(StateVisitor& visitor) {
  // Integers are not negative here (SharedNumbers).
  std::int64_t saved = saved_step_ + 1;
  std::int64_t restored = restored_step_ + 1;
  std::int64_t owed = owes_checkpoint_ ? 1 : 0;
  visitor.number("saved", saved);
  visitor.number("restored", restored);
  visitor.number("owed", owed);
  saved_step_ = saved - 1;
  restored_step_ = restored - 1;
  owes_checkpoint_ = owed != 0;
}

}  // namespace gossamer::apps
