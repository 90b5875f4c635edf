// The part of the training loop that deals with checkpoints and signals.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>

#include "apps/train/agreement.hpp"
#include "apps/train/model_file.hpp"
#include "apps/train/resume.hpp"
#include "apps/train/training_loop.hpp"
#include "base/error.hpp"
#include "base/shell_word.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "core/checkpoint/average.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/state_file.hpp"

namespace gossamer::apps {

void TrainingLoop::open_checkpoints() {
  const bool meets = setup_.stop != nullptr || !steps_.in_step();
  if (!meets) return;
  meetings_.emplace(setup_.communicator);
  if (!setup_.saves_checkpoints) return;
  checkpointer_.emplace(
      Checkpointer::Setup{.communicator = setup_.communicator,
                          .world = setup_.world,
                          .logger = setup_.world.rank == 0 ? setup_.logger : Logger(),
                          .folder = checkpoint_folder(folder_path_),
                          .keep = config_.checkpoints.keep,
                          .run = values_for_manifest(config_),
                          .members = membership_.members,
                          .history = checkpoint_history_});
}

void TrainingLoop::visit_generator(StateVisitor& visitor) const {
  // Ranks of one process share the generator. The models of this program draw nothing from it, but
  // those of others may, for dropout.
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  torch::Tensor state = generator.get_state();
  visitor.block("random/torch",
                {.data = state.data_ptr(), .numel = state.numel(), .dtype = DType::kUInt8});
  // After a change of the number of ranks each keeps the state with which it has begun.
  if (visitor.loads() && !setup_.reshapes) generator.set_state(state);
}

void TrainingLoop::visit_phase(StateVisitor& visitor) {
  const std::vector<RunPhase>& phases = phases_;
  if (phases.size() == 1 && !phases.front().control) return;
  auto phase = static_cast<std::int64_t>(phase_);
  std::int64_t is_sparse = is_sparse_ ? 1 : 0;
  visitor.number("train/phase", phase);
  visitor.number("train/sparse", is_sparse);
  if (!visitor.loads()) return;
  const bool fits = phase >= 0 && phase < std::ssize(phases);
  if (!fits || (is_sparse != 0 && !phases[static_cast<std::size_t>(phase)].control)) {
    throw CheckpointError(concat("phase ", phase, " is not one of this run's"));
  }
  switch_to(static_cast<std::size_t>(phase), is_sparse != 0);
}

void TrainingLoop::visit(StateVisitor& visitor) {
  // State is that of the phase's algorithm.
  visit_phase(visitor);
  model_.visit(visitor);
  steps_.visit(visitor);
  visit_changes(visitor);
  visitor.number("train/samples", num_samples_);
  visitor.number("train/window_loss", window_.loss);
  visitor.number("train/window_losses", window_.num_losses);
  visitor.number("train/window_samples", window_.samples);
  visitor.number("train/window_steps", window_.steps);
  visitor.number("train/lr", lr_);
  divergence_.visit(visitor);
  visitor.number("train/best_loss", best_loss_);
  visitor.number("train/best_step", best_step_);
  visitor.number("train/num_worse", num_worse_);
  visitor.number("train/evaluated_step", evaluated_step_);
  visit_generator(visitor);
  if (scaler_) scaler_->visit(visitor);
  if (ema_) ema_->visit(visitor);

  // Nothing that is computed depends on these. Most differ from run to run.
  std::int64_t has_consensus = last_consensus_ ? 1 : 0;
  double consensus = last_consensus_.value_or(0.0);
  visitor.number("record/has_consensus", has_consensus);
  visitor.number("record/consensus", consensus);
  if (has_consensus != 0) last_consensus_ = consensus;
  double elapsed = elapsed_s();
  visitor.number("record/elapsed_s", elapsed);
  constexpr const char* kRecovery = "record/recovery_s";
  if (visitor.loads() ? visitor.holds(kRecovery) : setup_.communicator.is_elastic()) {
    visitor.number(kRecovery, recovery_s_);
  }
  visitor.number("record/window_s", window_.seconds);
  visitor.number("record/train_s", train_s_);
  visitor.number("record/forward_s", forward_s_);
  visitor.number("record/backward_s", backward_s_);
  PipelineMetrics metrics = total_metrics();
  visitor.number("record/wait_s", metrics.wait_s);
  visitor.number("record/update_s", metrics.update_s);
  visitor.number("record/pipeline_s", metrics.pipeline_s);
  visitor.number("record/bytes_sent", metrics.bytes_sent);
  visitor.number("record/wide_differences", metrics.num_wide_differences);
  visitor.number("record/last_wait_s", last_wait_s_);
  std::int64_t metrics_bytes = folder_ == nullptr ? 0 : folder_->metrics_bytes();
  visitor.number("record/metrics_bytes", metrics_bytes);
  if (!visitor.loads()) return;
  check_restored();
  // The mean of several ranks' states has made as many steps as they have in the mean.
  steps_.resume(/*of_this_rank=*/!setup_.reshapes, model_.progress().num_updates());
  earlier_metrics_ = metrics;
  set_elapsed(elapsed);
  if (folder_ != nullptr) folder_->resume(metrics_bytes, steps_.run());
}

void TrainingLoop::check_restored() const {
  for (const std::int64_t steps : {steps_.run(), steps_.own()}) {
    if (steps < 0 || steps > Progress::kMostSteps) {
      throw CheckpointError(
          concat("the checkpoint is of step ", steps, ", which no run can have saved"));
    }
  }
  if (steps_.run() <= steps_.total()) return;
  throw ConfigError(concat(config_.steps ? "run.steps" : "run.epochs", ": the run ends after step ",
                           steps_.total(), ", and its checkpoint is already past it, after step ",
                           steps_.run(),
                           "; type a larger number, or run.output_dir=PATH for a new run"));
}

PipelineMetrics TrainingLoop::total_metrics() const {
  PipelineMetrics total = earlier_metrics_;
  total += model_.metrics();
  return total;
}

void TrainingLoop::restore(const std::string& checkpoint) {
  // Names that begin so are removed if the run dies here.
  const std::string average = concat(checkpoint, "/../", Checkpointer::kStaging, "average");
  const Manifest manifest = jointly(setup_.communicator, [&] { return read_manifest(checkpoint); });
  if (setup_.reshapes) {
    jointly_slow(setup_.communicator, [&] {
      if (setup_.world.rank == 0) write_average(checkpoint, manifest.world_size, average);
      return true;
    });
  }
  const auto file = jointly(setup_.communicator, [&] {
    return std::make_unique<SafetensorsFile>(
        setup_.reshapes ? average : concat(checkpoint, "/", rank_file_name(setup_.world.rank)));
  });
  if (steps_.in_step()) changes_ = {beginning_of(manifest)};
  StateLoader loader(*file);
  visit(loader);
  jointly(setup_.communicator, [&] {
    loader.check_all_loaded();
    // Ranks that go on from different steps would wait for one another.
    if (manifest.step != steps_.run()) {
      throw CheckpointError(concat(checkpoint, ": the manifest is of step ", manifest.step,
                                   ", and the state of rank ", setup_.world.rank, " of step ",
                                   steps_.run()));
    }
    return true;
  });
  // What lies in the folder may be of steps that are made again, perhaps in another way.
  jointly_slow(setup_.communicator, [&] {
    if (folder_ == nullptr) return true;
    folder_->replace_best(best_step_ > 0 ? concat(checkpoint, "/", kBestModelName) : "");
    return true;
  });
  std::error_code ignored;
  if (setup_.reshapes && setup_.world.rank == 0) std::filesystem::remove(average, ignored);
}

void TrainingLoop::keep_reshaped() {
  if (!setup_.reshapes || !checkpointer_) return;
  const std::string error = save_checkpoint();
  if (error.empty()) return;
  model_.drain();
  throw JointFailure(
      concat("the mean of the saved states could not be saved: ", error, "; the run is as it was"),
      ExitCode::kCheckpoint);
}

void TrainingLoop::start_checkpoint() {
  const TimelineScope span(timeline_.get(), {.what = "checkpoint"});
  // Until it is written (admit_others()): it would begin anew.
  admit(false);
  last_checkpoint_ = Clock::now();
  owes_checkpoint_ = false;
  // Before any rank can write a file there.
  if (folder_ != nullptr) folder_->begin();
  read_losses();
  std::vector<NamedTensor> model;
  {
    const AverageScope scope = model_.global_average();
    if (setup_.world.rank == 0) model = copy_to_host(*net_);
  }
  const bool has_best = folder_ != nullptr && best_step_ > 0;
  checkpointer_->start(
      steps_.run(), [&](StateVisitor& visitor) { visit(visitor); }, std::move(model),
      has_best ? concat(folder_->path(), "/", RunFolder::kBestModel) : "");
}

std::string TrainingLoop::save_checkpoint() {
  // An earlier one may be under way.
  checkpointer_->wait();
  // Before its evaluation a run that is at its end has saved one.
  if (saved_step_ == steps_.run()) return "";
  start_checkpoint();
  std::string error = checkpointer_->wait();
  if (error.empty()) saved_step_ = steps_.run();
  return error;
}

bool TrainingLoop::checkpoint_is_due() const {
  const std::int64_t every = config_.checkpoints.every_steps;
  return checkpointer_ && (owes_checkpoint_ || steps_.has_passed(every)) &&
         steps_.run() != restored_step_;
}

Meetings::News TrainingLoop::own_news() {
  const int caught = setup_.stop != nullptr ? setup_.stop->caught() : 0;
  const bool saves = checkpointer_.has_value();
  const bool writes = saves && checkpointer_->under_way();
  const double minutes = config_.checkpoints.every_minutes;
  const std::chrono::duration<double, std::ratio<60>> since = Clock::now() - last_checkpoint_;
  const bool is_due = setup_.world.rank == 0 && saves && !writes && steps_.run() > 0 &&
                      minutes > 0.0 && since.count() >= minutes;
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

void TrainingLoop::meet() {
  if (!meetings_ || !meetings_->is_due(steps_.run())) return;
  const auto news = meetings_->meet(steps_.run(), own_news());
  if (news) act_upon(*news);
}

bool TrainingLoop::has_been_written(const Meetings::News& news) const {
  // Sums may be older than the checkpoint that is under way now.
  return checkpointer_ && checkpointer_->under_way() &&
         news.written == setup_.world.size * checkpointer_->step();
}

bool TrainingLoop::asks_for_something(const Meetings::News& news) const {
  return steps_.is_over() || steps_.is_due(config_.consensus_every) ||
         steps_.is_due(config_.log_every) || steps_.is_due(config_.eval_every) ||
         checkpoint_is_due() || has_been_written(news) || news.num_signals() > 0 ||
         news.checkpoint_failed > 0 || news.checkpoint_due > 0;
}

void TrainingLoop::act_upon(const Meetings::News& news) {
  if (has_been_written(news)) checkpointer_->finish();
  if (news.num_signals() > 0) stop(news);
  if (news.checkpoint_failed > 0) {
    meetings_->leave();
    checkpointer_->wait();
    end_if_checkpoint_failed();
  }
  if (news.checkpoint_due > 0 && checkpointer_ && !checkpointer_->under_way()) {
    start_checkpoint();
  }
}

void TrainingLoop::stop(const Meetings::News& news) {
  signals_ = news;
  admit(false);
  meetings_->leave();
  const auto [name, code] = news.terminate > 0   ? std::pair("SIGTERM", ExitCode::kTerminated)
                            : news.hang_up > 0   ? std::pair("SIGHUP", ExitCode::kTerminated)
                            : news.interrupt > 0 ? std::pair("SIGINT", ExitCode::kInterrupted)
                                                 : std::pair("SIGUSR1", ExitCode::kPreempted);
  const std::string text =
      concat("stopped by ", name, " after step ", steps_.run(), " of ", steps_.total());
  const bool saves = checkpointer_ && (news.preempt > 0 || config_.checkpoints.enabled());
  if (steps_.run() == 0 || !saves) {
    if (checkpointer_) checkpointer_->wait();
    model_.drain();
    follow_timeline(/*is_over=*/true);
    leave_with({.text = text, .code = code});
  }
  const std::string error = save_checkpoint();
  model_.drain();
  follow_timeline(/*is_over=*/true);
  if (!error.empty()) {
    leave_with({.text = concat(text, "; a checkpoint could not be saved: ", error),
                .code = ExitCode::kCheckpoint});
  }
  leave_with({.text = text, .code = ExitCode::kPreempted, .is_saved = true});
}

void TrainingLoop::leave_with(const Stop& stop) {
  stopped_ = stop;
  admit(false);
  // Where a rank is lost before, those that are left go on and come here again.
  if (setup_.communicator.is_elastic()) setup_.communicator.barrier();
  leave_now();
}

void TrainingLoop::leave_now() {
  std::string text = stopped_->text;
  if (stopped_->is_saved) {
    text += concat("; the checkpoint is saved; to continue, type: ", how_to_continue());
  }
  throw JointFailure(text, stopped_->code);
}

std::string TrainingLoop::how_to_continue() const {
  if (folder_path_.empty()) return "";
  const int size = setup_.world.size;
  const std::string resume = concat("gossamer train --resume ", shell_word(folder_path_));
  if (setup_.resume_command) return setup_.resume_command(resume, size);
  const bool has_launcher = under_mpi_launcher();
  return concat(has_launcher ? concat("mpirun -n ", size, " ") : "", resume,
                has_launcher || size == 1 ? "" : concat(" --ranks ", size));
}

void TrainingLoop::end_if_checkpoint_failed() {
  if (!config_.checkpoints.must_succeed) return;
  const auto& errors = checkpointer_->errors();
  const std::string error =
      setup_.communicator.all_gather(errors.empty() ? "" : errors.front()).front();
  if (error.empty()) return;
  model_.drain();
  leave_with({.text = concat("a checkpoint could not be saved: ", error,
                             "; run.checkpoint_failure: end lets that end the run after step ",
                             steps_.run()),
              .code = ExitCode::kCheckpoint});
}

void TrainingLoop::close_checkpoints() {
  if (!checkpointer_) return;
  checkpointer_->wait();
  // The end of a long run, so that it can be made longer.
  const bool has_some = setup_.communicator.all_gather(checkpointer_->newest()).front() != "";
  if ((config_.checkpoints.given || has_some) && config_.checkpoints.enabled() &&
      steps_.run() != restored_step_) {
    save_checkpoint();
  }
  end_if_checkpoint_failed();
}

}  // namespace gossamer::apps
