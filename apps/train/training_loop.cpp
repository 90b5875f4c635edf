#include "apps/train/training_loop.hpp"

#include <array>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include "apps/train/advice.hpp"
#include "apps/train/agreement.hpp"
#include "apps/train/rank_setup.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/bucket/model_average.hpp"
#include "core/checkpoint/average.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/state_file.hpp"
#include "core/exchange/block_checksum.hpp"
#include "core/torch/parameters.hpp"
#include "topology/rank_round.hpp"

namespace gossamer::apps {
namespace {

/// Shows the visitor the state of LibTorch's generator of random numbers. `takes`: loading changes
/// the generator.
void visit_generator(StateVisitor& visitor, bool takes) {
  // Ranks of one process share the generator. The models of this program draw nothing from it, but
  // models of others may, for dropout.
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  torch::Tensor state = generator.get_state();
  visitor.block("random/torch",
                {.data = state.data_ptr(), .numel = state.numel(), .dtype = DType::kUInt8});
  if (visitor.loads() && takes) generator.set_state(state);
}

/// Collective. A checksum of each rank's parameters, as text.
std::vector<std::string> parameter_checksums(Communicator& communicator, const StepRunner& runner) {
  std::uint64_t sum = 0;
  for (const torch::Tensor& parameter : runner.model().parameters()) {
    sum = sum * 31 + checksum(block_of_tensor(parameter.cpu()));
  }
  return communicator.all_gather(concat(std::hex, sum));
}

}  // namespace

TrainingLoop::TrainingLoop(const RunConfig& config, const Setup& setup)
    : config_(config),
      setup_(setup),
      data_(config, setup_),
      runner_(config, setup_, data_),
      evaluator_(config, setup_, runner_, data_.steps()),
      phases_(config, setup_, runner_, data_.steps()),
      recorder_(config, setup_, data_, runner_, evaluator_,
                [this](Json& status, std::vector<std::string>& faults) {
                  checkpoints_.add_status(status, faults);
                  survival_.add_status(status);
                }),
      checkpoints_(config, setup_, data_.steps(), runner_, recorder_,
                   [this](StateVisitor& visitor) { visit(visitor); }),
      survival_(config, setup_,
                {.data = data_,
                 .runner = runner_,
                 .phases = phases_,
                 .evaluator = evaluator_,
                 .recorder = recorder_,
                 .checkpoints = checkpoints_,
                 .state = state_}) {
  if (setup_.is_first()) warn_of_data();
}

void TrainingLoop::warn_of_data() const {
  if (data_.batch_size() < config_.batch_size) {
    setup_.logger.warning(concat("data.batch_size is ", config_.batch_size, ", but each of the ",
                                 setup_.world.size, " ranks has only ", data_.batch_size(),
                                 " samples, so a step takes ", data_.batch_size(),
                                 " per rank; use more data, fewer ranks or a smaller "
                                 "data.batch_size"));
  }
  const std::string warning = validation_warning(*setup_.data);
  if (!warning.empty()) setup_.logger.warning(warning);
}

void TrainingLoop::run(std::unique_ptr<RunFolder> folder, const std::string& checkpoint) {
  recorder_.begin(std::move(folder));
  checkpoints_.begin();
  try {
    survival_.begin();
    if (survival_.has_joined()) {
      survival_.survive([this] { survival_.enter(setup_.communicator.elastic()->membership()); });
    } else {
      // Before another rank may have to go on with the folder. restore() begins the folder where a
      // run continues.
      if (setup_.communicator.is_elastic() && recorder_.folder() != nullptr && checkpoint.empty()) {
        recorder_.folder()->begin();
      }
      recorder_.share_folder();
      checkpoints_.open(survival_.membership().members);
    }
    if (!checkpoint.empty()) {
      restore(checkpoint);
      checkpoints_.note_restored();
      keep_reshaped();
      if (recorder_.folder() != nullptr) recorder_.folder()->write_configuration();
    }
    rank_local([&] { train(); });
    close();
  } catch (const std::exception& error) {
    recorder_.end_line();
    // If the others have gone on without this rank, the folder is theirs.
    const bool is_theirs =
        setup_.communicator.is_elastic() && exit_code_of(error) == ExitCode::kPreempted;
    if (!is_theirs) recorder_.write_failure(error);
    throw;
  }
}

void TrainingLoop::train() {
  recorder_.write_status();
  const StepCount& steps = data_.steps();
  if (auto& timeline = runner_.step_timeline(); timeline && !survival_.has_joined()) {
    timeline->set_steps(
        config_.timeline_steps.value_or(default_timeline_steps(steps.total() - steps.run())));
  }
  if (steps.in_step()) return train_in_step();
  if (evaluator_.is_due_after_resume(checkpoints_.restored_step())) evaluate_and_record();
  train_asynchronously();
  end();
}

void TrainingLoop::train_in_step() {
  if (setup_.communicator.is_elastic()) {
    // Once, because ranks that have recovered are all here. A rank that has joined finds them here.
    if (!survival_.has_joined()) survival_.survive([this] { setup_.communicator.barrier(); });
    // Records of the run before it was resumed may be of other members.
    if (checkpoints_.restored_step() >= 0 && survival_.membership().epoch == 0) {
      survival_.write_members(Json::object());
    }
  }
  // Decided anew after every loss of ranks, because the ranks that are left follow rank 0.
  while (!state_.has_ended) {
    survival_.survive([this] {
      runner_.device().communicator().check();
      if (evaluator_.is_due_after_resume(checkpoints_.restored_step())) {
        evaluate_and_record();
      } else {
        is_at_end() ? end() : iterate();
      }
    });
  }
}

void TrainingLoop::iterate() {
  if (!state_.is_recorded) {
    control_consensus();
    record();
    state_.is_recorded = true;
  }
  if (data_.steps().is_over() || evaluator_.is_out_of_patience()) return;
  // A checkpoint that is being written is one of the present members.
  if (!checkpoints_.is_under_way()) setup_.admit(true);
  checkpoints_.meet();
  if (checkpoints_.is_due()) checkpoints_.start();
  runner_.advance_timeline(/*is_over=*/false);
  phases_.begin_due_phase();
  data_.steps().mark_handled();
  advance();
}

void TrainingLoop::advance() {
  runner_.advance();
  state_.is_recorded = false;
}

void TrainingLoop::note_steps_of_all(std::int64_t steps_of_all) {
  data_.steps().set_mean_steps(steps_of_all / setup_.world.size,
                               runner_.model().engine().progress().num_updates());
}

void TrainingLoop::train_asynchronously() {
  StepCount& steps = data_.steps();
  while (!steps.is_over() && !evaluator_.is_out_of_patience()) {
    const std::optional<ControlSync::Status> status = checkpoints_.poll();
    if (!status) {
      advance();
      continue;
    }
    steps.mark_handled();
    note_steps_of_all(status->steps);
    if (!checkpoints_.asks_for_something(*status)) continue;
    runner_.model().drain();
    // The sum is older than the last steps.
    note_steps_of_all(std::llround(
        sum_over_ranks(setup_.communicator, {static_cast<double>(steps.own())}).front()));
    record();
    checkpoints_.act_upon(*status);
    if (!steps.is_over() && checkpoints_.is_due()) checkpoints_.start();
  }
}

bool TrainingLoop::is_at_end() const {
  return state_.is_recorded && (data_.steps().is_over() || evaluator_.is_out_of_patience());
}

void TrainingLoop::control_consensus() {
  if (!phases_.measures_now()) return;
  const Consensus consensus = evaluator_.measure_consensus();
  recorder_.add_bytes_sent(exchange_bytes(runner_.model().engine().plan().bytes(),
                                          static_cast<std::size_t>(setup_.world.size)));
  phases_.note_consensus(consensus);
}

void TrainingLoop::record() {
  const StepCount& steps = data_.steps();
  recorder_.note_sharing();
  if (steps.is_due(config_.consensus_every)) {
    recorder_.set_consensus(evaluator_.measure_consensus().distance);
  }
  const bool is_recorded = steps.is_due(config_.log_every) || steps.is_due(config_.consensus_every);
  if (is_recorded || steps.is_due(config_.unrecorded_every())) recorder_.end_window(is_recorded);
  if (steps.is_due(config_.eval_every) && !steps.is_over()) evaluate_and_record();
  stop_if_diverged();
}

void TrainingLoop::stop_if_diverged() {
  Divergence& divergence = evaluator_.divergence();
  if (!divergence.is_news()) return;
  const std::string text = concat(divergence.what(), "; ", advice_against_divergence(config_));
  if (!config_.stops_diverged) {
    if (setup_.is_first()) setup_.logger.warning(text);
    return;
  }
  checkpoints_.leave_meetings();
  checkpoints_.wait();
  runner_.model().drain();
  checkpoints_.leave_with(
      {.text = concat(text, " (train.diverged: stop)"), .code = ExitCode::kNonFinite});
}

Evaluation TrainingLoop::evaluate() {
  // ControlSync count batches for a while.
  checkpoints_.leave_meetings();
  // A rank that joined now would make the evaluation begin anew.
  setup_.admit(false);
  // Equally many batches on all ranks, so that they meet before the same one.
  std::int64_t batch = 0;
  try {
    const Evaluation result =
        evaluator_.evaluate(recorder_.folder(), [&] { checkpoints_.read_signals(batch++); });
    checkpoints_.leave_meetings();
    // Where ranks are lost before, the evaluation is repeated.
    evaluator_.count(result);
    return result;
  } catch (const CheckpointControl::Heard& heard) {
    // The model has its own values again.
    checkpoints_.stop(heard.status);
  }
}

void TrainingLoop::evaluate_and_record() {
  const TimelineScope scope(runner_.timeline(), {.what = "evaluation"});
  recorder_.write_evaluation(evaluate());
}

void TrainingLoop::end() {
  runner_.advance_timeline(/*is_over=*/true);
  const StepCount& steps = data_.steps();
  if (evaluator_.is_out_of_patience() && setup_.is_first()) {
    setup_.logger.info(concat("ends after step ", steps.run(), " of ", steps.total(),
                              ": the loss of the mean model was least after step ",
                              evaluator_.best_step(), ", ", evaluator_.num_worse(),
                              " evaluations ago (train.patience)"));
  }
  checkpoints_.leave_meetings();
  setup_.admit(false);
  finish();
  state_.is_saved = true;
  // A rank that has not heard that all is saved would ask ranks that have left.
  if (setup_.communicator.is_elastic()) setup_.communicator.barrier();
  state_.has_ended = true;
}

void TrainingLoop::finish() {
  runner_.model().drain();
  const Summary summary = recorder_.summarize();
  const std::vector<std::string> checksums = parameter_checksums(setup_.communicator, runner_);
  // Whatever becomes of the evaluation, which may take long, what has been trained is there.
  evaluator_.save_models(recorder_.folder());
  checkpoints_.finish();
  const Evaluation evaluation = evaluate();
  stop_if_diverged();
  if (!evaluator_.has_record()) {
    all_or_none_slow(setup_.communicator, [&] {
      recorder_.write_evaluation(evaluation);
      return true;
    });
  }
  all_or_none_slow(setup_.communicator, [&] {
    recorder_.write_end(summary, evaluation, checksums);
    return true;
  });
  recorder_.show_end(summary, evaluation);
}

void TrainingLoop::visit(StateVisitor& visitor) {
  // The saved state belongs to the phase's algorithm.
  phases_.visit(visitor);
  runner_.visit_model(visitor);
  data_.visit_changes(visitor);
  runner_.visit_sums(visitor);
  evaluator_.visit(visitor);
  // After a change of the number of ranks each keeps the state with which it has begun.
  visit_generator(visitor, /*takes=*/!setup_.reshapes);
  // Nothing that is computed depends on what follows. Most of it differs from run to run.
  survival_.visit(visitor);
  runner_.visit_times(visitor);
  if (visitor.loads()) {
    check_restored();
    // The mean of several ranks' states has made as many steps as they have in the mean.
    data_.steps().resume(/*of_this_rank=*/!setup_.reshapes,
                         runner_.model().engine().progress().num_updates());
  }
  recorder_.visit(visitor);
}

void TrainingLoop::check_restored() const {
  const StepCount& steps = data_.steps();
  for (const std::int64_t made : {steps.run(), steps.own()}) {
    if (made < 0 || made > Progress::kMostSteps) {
      throw CheckpointError(
          concat("the checkpoint is of step ", made, ", which no run can have saved"));
    }
  }
  if (steps.run() <= steps.total()) return;
  throw ConfigError(concat(config_.steps ? "run.steps" : "run.epochs", ": the run ends after step ",
                           steps.total(), ", and its checkpoint is already past it, after step ",
                           steps.run(),
                           "; type a larger number, or run.output_dir=PATH for a new run"));
}

void TrainingLoop::restore(const std::string& checkpoint) {
  // Names that begin so are removed if the run dies here.
  const std::string average = concat(checkpoint, "/../", Checkpointer::kStaging, "average");
  const Manifest manifest =
      all_or_none(setup_.communicator, [&] { return read_manifest(checkpoint); });
  if (setup_.reshapes) {
    all_or_none_slow(setup_.communicator, [&] {
      if (setup_.is_first()) write_average(checkpoint, manifest.world_size, average);
      return true;
    });
  }
  const auto file = all_or_none(setup_.communicator, [&] {
    return std::make_unique<SafetensorsFile>(
        setup_.reshapes ? average : concat(checkpoint, "/", rank_file_name(setup_.world.rank)));
  });
  // A loop in Python has no configuration, and of the program's numbers only those of the model.
  constexpr std::array<std::string_view, 3> kOfTheProgram = {"train/", "record/", "random/"};
  const bool is_of_program = !manifest.run.empty();
  if (is_of_program) data_.begin_like(manifest);
  StateLoader loader(*file, is_of_program ? std::span<const std::string_view>() : kOfTheProgram);
  visit(loader);
  const std::int64_t step = data_.steps().run();
  all_or_none(setup_.communicator, [&] {
    loader.check_all_loaded();
    // Ranks that go on from different steps would wait for one another.
    if (manifest.step != step) {
      throw CheckpointError(concat(checkpoint, ": the manifest is of step ", manifest.step,
                                   ", and the state of rank ", setup_.world.rank, " of step ",
                                   step));
    }
    return true;
  });
  // What lies in the folder may be of steps that are made again, perhaps in another way.
  all_or_none_slow(setup_.communicator, [&] {
    if (recorder_.folder() == nullptr) return true;
    const bool has_best = evaluator_.best_step() > 0;
    recorder_.folder()->replace_best(has_best ? concat(checkpoint, "/", kBestModelName) : "");
    return true;
  });
  std::error_code ignored;
  if (setup_.reshapes && setup_.is_first()) std::filesystem::remove(average, ignored);
}

void TrainingLoop::keep_reshaped() {
  if (!setup_.reshapes || !checkpoints_.saves()) return;
  const std::string error = checkpoints_.save();
  if (error.empty()) return;
  runner_.model().drain();
  throw JointFailure(
      concat("the mean of the saved states could not be saved: ", error, "; the run is as it was"),
      ExitCode::kCheckpoint);
}

}  // namespace gossamer::apps
