#include "apps/train/run_recorder.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

#include "apps/records/left_folder.hpp"
#include "apps/train/agreement.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/bucket/model_average.hpp"

namespace gossamer::apps {
namespace {

// A writer that fails with the others writes within this time how the run has ended.
constexpr auto kPatienceWithWriter = std::chrono::seconds(3);

/// Collective. The figures of all ranks, in rank order. Figures has members of type double alone.
template <class Figures>
std::vector<Figures> gather(Communicator& communicator, const Figures& own) {
  using Row = std::array<double, sizeof(Figures) / sizeof(double)>;
  static_assert(sizeof(Row) == sizeof(Figures));
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const auto size = static_cast<std::size_t>(communicator.size());
  const auto row = std::bit_cast<Row>(own);
  std::vector<double> all(size * row.size());
  std::ranges::copy(row, all.begin() + static_cast<std::ptrdiff_t>(rank * row.size()));
  all = sum_over_ranks(communicator, std::move(all));
  std::vector<Figures> rows;
  for (auto begin = all.begin(); begin != all.end(); begin += std::ssize(row)) {
    Row one;
    std::copy_n(begin, one.size(), one.begin());
    rows.push_back(std::bit_cast<Figures>(one));
  }
  return rows;
}

/// Prints the table of figures at the end of a run. `folder` is the folder of the run.
void print_summary(const Summary& summary, const Evaluation& evaluation,
                   const std::string& folder) {
  const double step_ms = 1e3 * summary.train_s / static_cast<double>(summary.steps);
  const double other_ms =
      step_ms - summary.forward_ms - summary.backward_ms - summary.wait_ms - summary.update_ms;
  std::printf("\n");
  std::printf("  ranks                        %12d\n", summary.world_size);
  std::printf("  steps                        %12lld\n", static_cast<long long>(summary.steps));
  if (evaluation.mean_model.has_accuracy) {
    std::printf("  accuracy, mean model         %11.2f %%\n",
                100.0 * evaluation.mean_model.accuracy());
    std::printf("  accuracy, worst local model  %11.2f %%\n",
                100.0 * evaluation.accuracy_worst_local);
  }
  std::printf("  loss, mean model             %12.4g\n", evaluation.mean_model.loss());
  if (evaluation.ema) {
    std::printf("  loss, moving average         %12.4g\n", evaluation.ema->loss());
  }
  std::printf("  consensus distance           %12.4g\n", evaluation.consensus_distance);
  std::printf("  samples per second           %12.0f\n", summary.samples_per_s);
  std::printf("  bytes sent per step and rank %12s\n",
              human_bytes(summary.bytes_sent_per_step).c_str());
  if (summary.num_wide_differences > 0) {
    std::printf("  wide differences (codec)     %12lld\n",
                static_cast<long long>(summary.num_wide_differences));
  }
  std::printf("  time per step                %9.2f ms\n", step_ms);
  std::printf("    forward                    %9.2f ms\n", summary.forward_ms);
  std::printf("    backward                   %9.2f ms\n", summary.backward_ms);
  std::printf("    waiting for peers          %9.2f ms\n", summary.wait_ms);
  std::printf("    mix and update             %9.2f ms\n", summary.update_ms);
  std::printf("    batches and the rest       %9.2f ms\n", other_ms);
  std::printf("\n  everything about this run is in %s\n", visible(folder).c_str());
  std::fflush(stdout);
}

}  // namespace

RunRecorder::RunRecorder(const RunConfig& config, const TrainingSetup& setup, const DataPlan& data,
                         StepRunner& runner, Evaluator& evaluator, AddStatus add_status)
    : config_(config),
      setup_(setup),
      data_(data),
      runner_(runner),
      evaluator_(evaluator),
      add_status_(std::move(add_status)),
      progress_(config.progress, setup.logger) {}

void RunRecorder::begin(std::unique_ptr<RunFolder> folder) {
  folder_ = std::move(folder);
  begin_ = Clock::now();
  runner_.begin_run();
  if (folder_ != nullptr && config_.tensorboard) folder_->use_tensorboard();
}

void RunRecorder::share_folder() {
  const std::string path = folder_ != nullptr ? folder_->path() : "";
  folder_path_ = setup_.communicator.all_gather(path).front();
  folder_writer_ = setup_.communicator.all_gather(this_process()).front();
}

void RunRecorder::set_folder(std::string path, std::string writer) {
  folder_path_ = std::move(path);
  folder_writer_ = std::move(writer);
}

bool RunRecorder::take_over_folder() {
  if (!setup_.is_first() || folder_ != nullptr) return false;
  folder_ = std::make_unique<RunFolder>(folder_path_, config_.resolved, IfFinished::kTakeOver);
  if (config_.tensorboard) folder_->use_tensorboard();
  folder_->take_over(data_.steps().run());
  return true;
}

double RunRecorder::elapsed_s() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

void RunRecorder::set_elapsed(double seconds) {
  begin_ = Clock::now() -
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

PipelineMetrics RunRecorder::total_metrics() const {
  PipelineMetrics total = earlier_metrics_;
  total += runner_.model().engine().metrics();
  return total;
}

void RunRecorder::note_sharing() {
  if (folder_ == nullptr || std::exchange(has_noted_sharing_, true)) return;
  const HostSharing sharing = runner_.model().engine().host_sharing();
  folder_->note("shared_memory",
                {{"sharing_ranks", sharing.num_sharing}, {"refused_ranks", sharing.num_refused}});
}

void RunRecorder::write_or_warn(const std::function<void()>& write) {
  try {
    write();
    is_broken_ = false;
  } catch (const CheckpointError& error) {
    if (std::exchange(is_broken_, true)) return;
    setup_.logger.warning(concat(error.what(), "; the run goes on without"));
  }
}

void RunRecorder::end_window(bool is_recorded) {
  const TimelineScope scope(runner_.timeline(), {.what = "records"});
  TrainingWindow& window = runner_.window();
  {
    // On a GPU this waits for the window's steps, which its time must count.
    const ScopedTimer timer(window.seconds);
    const ScopedTimer total(runner_.times().train_s);
    window.read_losses();
  }
  const StepCount& steps = data_.steps();
  const double wait_s = total_metrics().wait_s;
  const Progress& progress = runner_.model().engine().progress();
  gathered_step_ = steps.run();
  const auto rows = gather<WindowFigures>(
      setup_.communicator, {.loss = window.loss,
                            .num_losses = static_cast<double>(window.num_losses),
                            .first_loss = window.first_loss,
                            .samples = static_cast<double>(window.samples),
                            .seconds = window.seconds,
                            .wait_s = wait_s - last_wait_s_,
                            .steps = static_cast<double>(window.steps),
                            .all_steps = static_cast<double>(steps.own()),
                            .num_skipped = static_cast<double>(progress.num_skipped)});
  gathered_step_.reset();
  unwritten_.clear();
  last_wait_s_ = wait_s;
  // Zero: all ranks have recorded these steps with a rank 0 that is lost.
  const bool has_steps = sum_of(rows, &WindowFigures::steps) > 0.0;
  const Json fields = window_fields(rows, steps.in_step());
  const double loss = fields["loss"];
  if (has_steps) {
    // A run may diverge before its first record, whose mean would then pass for the beginning.
    evaluator_.divergence().begin(sum_of(rows, &WindowFigures::first_loss) / setup_.world.size);
    evaluator_.divergence().note_loss(steps.run(), loss);
  }
  const bool is_kept = folder_ != nullptr || setup_.communicator.is_elastic();
  if (!is_recorded || !is_kept) {
    window = {};
    return;
  }
  if (!has_steps) return;
  const ProgressState state{.step = steps.run(),
                            .total_steps = steps.total(),
                            .loss = loss,
                            .lr = runner_.last_lr(),
                            .samples_per_s = fields["samples_per_s"],
                            .seconds_left = elapsed_s() / static_cast<double>(steps.run()) *
                                            static_cast<double>(steps.total() - steps.run()),
                            .consensus_distance = last_consensus_};
  Json record = begin_record(state, rows);
  record.update(fields);
  window = {};
  if (setup_.communicator.is_elastic()) unwritten_ = {record};
  if (folder_ == nullptr) return;
  folder_->begin();
  write_record(record);
  if (setup_.observer) {
    setup_.observer(state);
  } else {
    progress_.show(state);
  }
}

Json RunRecorder::begin_record(const ProgressState& state, const std::vector<WindowFigures>& rows) {
  const StepCount& steps = data_.steps();
  Json record = {{"kind", "step"},
                 {"step", state.step},
                 {"epoch", static_cast<double>(state.step * config_.accumulate) /
                               static_cast<double>(data_.batches_per_epoch())},
                 {"lr", state.lr}};
  if (config_.gradients.recipe == Recipe::kAllReduce) {
    record["recipe_factor"] = runner_.recipe_factor();
  }
  if (config_.gradients.nonfinite == NonFinite::kSkip) {
    num_skipped_ = steps.in_step() ? runner_.model().engine().progress().num_skipped
                                   : std::llround(sum_of(rows, &WindowFigures::num_skipped));
    record["skipped_steps"] = num_skipped_;
  }
  if (steps.is_due(config_.consensus_every)) record["consensus_distance"] = *last_consensus_;
  record["elapsed_s"] = elapsed_s();
  return record;
}

void RunRecorder::write_evaluation(const Evaluation& evaluation) {
  evaluator_.note_record();
  Json record = {{"kind", "eval"}, {"step", data_.steps().run()}};
  record.update(to_json(evaluation));
  record["elapsed_s"] = elapsed_s();
  if (setup_.communicator.is_elastic()) {
    unwritten_.push_back(record);
    if (folder_ != nullptr && folder_->has_record(record)) return;
  }
  if (folder_ == nullptr) return;
  write_or_warn([&] { folder_->write_metrics(record); });
}

void RunRecorder::share_unwritten() {
  std::map<std::pair<std::int64_t, bool>, Json> records;
  std::int64_t last_step = -1;
  for (const std::string& text : setup_.communicator.all_gather(Json(unwritten_).dump())) {
    for (Json& record : Json::parse(text)) {
      const std::int64_t step = record["step"];
      const bool is_evaluation = record["kind"] == "eval";
      if (!is_evaluation) last_step = std::max(last_step, step);
      records.try_emplace({step, is_evaluation}, std::move(record));
    }
  }
  unwritten_.clear();
  for (auto& [key, record] : records) unwritten_.push_back(std::move(record));
  // Others have gathered this rank's figures, though this rank did not know theirs.
  if (gathered_step_ && *gathered_step_ <= last_step) runner_.window() = {};
  gathered_step_.reset();
}

void RunRecorder::write_unwritten() {
  if (folder_ == nullptr) return;
  for (const Json& record : unwritten_) {
    if (!folder_->has_record(record)) write_record(record);
  }
}

void RunRecorder::write_record(const Json& record) {
  if (folder_ == nullptr) return;
  write_or_warn([&] {
    folder_->write_metrics(record);
    folder_->write_status(status("running"), /*sync=*/false);
  });
}

void RunRecorder::write_status() {
  if (folder_ == nullptr) return;
  write_or_warn([&] { folder_->write_status(status("running"), /*sync=*/false); });
}

Json RunRecorder::status(std::string_view state) const {
  Json status = {{"state", state},
                 {"step", data_.steps().run()},
                 {"total_steps", data_.steps().total()},
                 {"writer", this_process()},
                 {"elapsed_s", elapsed_s()}};
  std::vector<std::string> faults = setup_.faults;
  add_status_(status, faults);
  const Divergence& divergence = evaluator_.divergence();
  if (divergence.has_diverged()) {
    status["diverged_at"] = divergence.step();
    faults.push_back(divergence.what());
  }
  if (num_skipped_ > 0) {
    faults.push_back(concat(num_skipped_, " steps were left out: a gradient was not finite"));
  }
  status["faults"] = faults;
  return status;
}

void RunRecorder::write_failure(const std::exception& error) {
  if (folder_ == nullptr) {
    // Where all ranks leave together, rank 0 writes.
    if (exit_code_of(error) != ExitCode::kPeerLost) return;
    write_end_of({.path = folder_path_,
                  .writer = folder_writer_,
                  .ends_together = !setup_.communicator.is_elastic()},
                 {.rank = setup_.world.rank, .message = error.what()}, kPatienceWithWriter);
    return;
  }
  Json end = status(is_stop(error) ? "stopped" : "failed");
  end["message"] = error.what();
  end["exit_code"] = static_cast<int>(exit_code_at_end(error));
  try {
    folder_->write_status(end, /*sync=*/true);
  } catch (const CheckpointError& second) {
    setup_.logger.warning(second.what());
  }
}

Summary RunRecorder::summarize() {
  const PipelineMetrics metrics = total_metrics();
  const StepTimes& times = runner_.times();
  const auto rows =
      gather<RunFigures>(setup_.communicator,
                         {.forward_s = times.forward_s,
                          .backward_s = times.backward_s - metrics.pipeline_s,
                          .wait_s = metrics.wait_s,
                          .update_s = metrics.update_s,
                          .bytes_sent = metrics.bytes_sent,
                          .train_s = times.train_s,
                          .samples = static_cast<double>(runner_.num_samples()),
                          .num_wide_differences = static_cast<double>(metrics.num_wide_differences),
                          .steps = static_cast<double>(data_.steps().own())});
  return summary_of(rows, data_.steps().run());
}

void RunRecorder::write_end(const Summary& summary, const Evaluation& evaluation,
                            const std::vector<std::string>& checksums) {
  if (folder_ == nullptr) return;
  Json record = to_json(summary);
  record.update(to_json(evaluation));
  record["parameter_checksums"] = checksums;
  folder_->write_metrics(record);
  Json end = status("done");
  end["exit_code"] = static_cast<int>(ExitCode::kDone);
  folder_->write_status(end, /*sync=*/true);
}

void RunRecorder::show_end(const Summary& summary, const Evaluation& evaluation) {
  if (folder_ == nullptr) return;
  progress_.end_line();
  if (!setup_.observer) print_summary(summary, evaluation, folder_->path());
}

void RunRecorder::visit(StateVisitor& visitor) {
  std::int64_t has_consensus = last_consensus_ ? 1 : 0;
  double consensus = last_consensus_.value_or(0.0);
  visitor.number("record/has_consensus", has_consensus);
  visitor.number("record/consensus", consensus);
  if (has_consensus != 0) last_consensus_ = consensus;
  double elapsed = elapsed_s();
  visitor.number("record/elapsed_s", elapsed);
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
  earlier_metrics_ = metrics;
  set_elapsed(elapsed);
  if (folder_ != nullptr) folder_->resume(metrics_bytes, data_.steps().run());
}

}  // namespace gossamer::apps
