// The part of the training loop that evaluates and writes records.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "apps/train/advice.hpp"
#include "apps/train/agreement.hpp"
#include "apps/train/left_folder.hpp"
#include "apps/train/model_file.hpp"
#include "apps/train/training_loop.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/exchange/block_checksum.hpp"
#include "core/torch/parameters.hpp"
#include "topology/rank_round.hpp"

namespace gossamer::apps {
namespace {

// A writer that fails with the others writes within this time how the run has ended.
constexpr auto kPatienceWithWriter = std::chrono::seconds(3);

/// Collective. The rows of all ranks, in rank order. All rows have the same length.
std::vector<std::vector<double>> gather_rows(Communicator& communicator,
                                             const std::vector<double>& row) {
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const auto size = static_cast<std::size_t>(communicator.size());
  std::vector<double> all(size * row.size());
  std::ranges::copy(row, all.begin() + static_cast<std::ptrdiff_t>(rank * row.size()));
  all = sum_over_ranks(communicator, std::move(all));
  std::vector<std::vector<double>> rows;
  for (auto begin = all.begin(); begin != all.end(); begin += std::ssize(row)) {
    rows.emplace_back(begin, begin + std::ssize(row));
  }
  return rows;
}

/// One number of each row, times `factor`.
std::vector<double> column(const std::vector<std::vector<double>>& rows, std::size_t index,
                           double factor = 1.0) {
  std::vector<double> numbers;
  for (const auto& row : rows) numbers.push_back(factor * row[index]);
  return numbers;
}

double sum_of(const std::vector<double>& numbers) {
  double sum = 0.0;
  for (const double number : numbers) sum += number;
  return sum;
}

}  // namespace

TrainingLoop::Consensus TrainingLoop::measure_consensus() {
  const TimelineScope span(timeline_.get(), {.what = "consensus"});
  const AverageScope scope = model_.global_average(false);
  return consensus_in(scope);
}

TrainingLoop::Consensus TrainingLoop::consensus_in(const AverageScope& scope) {
  double square = 0.0;
  for (const torch::Tensor& parameter : model_.parameters()) {
    if (!parameter.requires_grad()) continue;
    square += parameter.detach().to(torch::kFloat64).square().sum().item<double>();
  }
  const double distance = scope.consensus_distance();
  // Rank 0's norm counts, so that all ranks have the same bits.
  const std::vector<double> sums = sum_over_ranks(
      setup_.communicator, {distance * distance, setup_.world.rank == 0 ? square : 0.0});
  const Consensus result{.distance = std::sqrt(sums[0] / setup_.world.size),
                         .norm = std::sqrt(sums[1])};
  divergence_.hear_consensus(steps_.run(), result.distance, result.norm, setup_.world.size);
  return result;
}

void TrainingLoop::heed_divergence() {
  if (!divergence_.is_news()) return;
  const std::string text = concat(divergence_.what(), "; ", advice_against_divergence(config_));
  if (!config_.stops_diverged) {
    if (setup_.world.rank == 0) setup_.logger.warning(text);
    return;
  }
  if (meetings_) meetings_->leave();
  if (checkpointer_) checkpointer_->wait();
  model_.drain();
  leave_with({.text = concat(text, " (train.diverged: stop)"), .code = ExitCode::kNonFinite});
}

void TrainingLoop::hear_signals() {
  // Equally many batches on all ranks, so that they meet before the same one.
  const std::int64_t batch = num_scored_++;
  if (!meetings_ || !meetings_->is_due(batch)) return;
  const auto news = meetings_->meet(batch, own_news());
  if (news && news->num_signals() > 0) throw Heard{*news};
}

Evaluation TrainingLoop::evaluate() {
  // Meetings count batches for a while.
  if (meetings_) meetings_->leave();
  num_scored_ = 0;
  // Until it is over (admit_others()): it would begin anew.
  admit(false);
  try {
    const Evaluation result = score_models();
    if (meetings_) meetings_->leave();
    // Where ranks are lost before, the evaluation is repeated.
    count_evaluation(result);
    divergence_.hear_loss(steps_.run(), result.mean_model.loss());
    return result;
  } catch (const Heard& heard) {
    // The model has its own values again.
    stop(heard.news);
  }
}

Evaluation TrainingLoop::score_models() {
  const Scoring how{.batch_size = config_.batch_size, .before_batch = [this] { hear_signals(); }};
  // A scope for each model: autocast keeps the parameters it has cast until its end.
  const auto in_precision = [this](const auto& score_model) {
    const AutocastScope autocast(device_.device(), config_.device.precision);
    return score_model();
  };
  const auto together = [&] {
    return in_precision([&] {
      return score_together(setup_.communicator, *net_, *setup_.data->validation, loss_, how);
    });
  };
  const Score mine =
      in_precision([&] { return score(*net_, *setup_.data->validation, loss_, how); });
  const std::vector<double> accuracies = gather_numbers(setup_.communicator, mine.accuracy());
  const std::vector<double> losses = gather_numbers(setup_.communicator, mine.loss());
  const AverageScope scope = model_.global_average();
  Evaluation result;
  result.accuracy_worst_local = *std::ranges::min_element(accuracies);
  result.loss_worst_local = *std::ranges::max_element(losses);
  for (const double accuracy : accuracies) {
    result.accuracy_mean_local += accuracy / setup_.world.size;
  }
  for (const double loss : losses) result.loss_mean_local += loss / setup_.world.size;
  result.consensus_distance = consensus_in(scope).distance;
  result.mean_model = together();
  std::vector<NamedTensor> mean;
  if (folder_ != nullptr && is_best(result)) mean = copy_to_host(*net_);
  if (ema_) {
    // The scope gives the model its own values back.
    ema_->use(setup_.communicator);
    result.ema = together();
  }
  // No signal ends the evaluation from here on, so it counts once.
  keep_best(result, mean);
  return result;
}

void TrainingLoop::save(std::string_view name, const std::vector<NamedTensor>& tensors) {
  jointly_slow(setup_.communicator, [&] {
    if (folder_ != nullptr) folder_->write_model(name, tensors);
    return true;
  });
}

void TrainingLoop::save_models() {
  const AverageScope scope = model_.global_average();
  const auto save_as = [&](std::string_view name) {
    save(name, folder_ != nullptr ? copy_to_host(*net_) : std::vector<NamedTensor>());
  };
  save_as(RunFolder::kModel);
  if (!ema_) return;
  ema_->use(setup_.communicator);
  save_as(RunFolder::kEmaModel);
}

bool TrainingLoop::is_best(const Evaluation& evaluation) const {
  const double loss = evaluation.mean_model.loss();
  return config_.eval_every > 0 && evaluated_step_ != steps_.run() && std::isfinite(loss) &&
         (best_step_ == 0 || loss < best_loss_);
}

void TrainingLoop::keep_best(const Evaluation& evaluation, const std::vector<NamedTensor>& mean) {
  if (is_best(evaluation)) save(RunFolder::kBestModel, mean);
}

void TrainingLoop::count_evaluation(const Evaluation& evaluation) {
  if (config_.eval_every == 0 || evaluated_step_ == steps_.run()) return;
  ++num_worse_;
  if (!is_best(evaluation)) return;
  best_loss_ = evaluation.mean_model.loss();
  best_step_ = steps_.run();
  num_worse_ = 0;
}

void TrainingLoop::evaluate_and_record() {
  const TimelineScope scope(timeline_.get(), {.what = "evaluation"});
  write_evaluation(evaluate());
}

bool TrainingLoop::resumes_before_evaluation() const {
  if (restored_step_ != steps_.run()) return false;
  const std::int64_t every = config_.eval_every;
  const std::int64_t evaluated = std::max<std::int64_t>(evaluated_step_, 0);
  return every > 0 && !steps_.is_over() && steps_.run() / every > evaluated / every;
}

void TrainingLoop::write_or_warn(const std::function<void()>& write) {
  try {
    write();
    folder_is_broken_ = false;
  } catch (const CheckpointError& error) {
    if (std::exchange(folder_is_broken_, true)) return;
    setup_.logger.warning(concat(error.what(), "; the run goes on without"));
  }
}

void TrainingLoop::write_step() {
  const TimelineScope scope(timeline_.get(), {.what = "records"});
  {
    // On a GPU this waits for the window's steps, which its time must count.
    const ScopedTimer timer(window_.seconds);
    const ScopedTimer total(train_s_);
    read_losses();
  }
  const double wait_s = total_metrics().wait_s;
  const auto rows = gather_rows(
      setup_.communicator,
      {window_.loss, static_cast<double>(window_.num_losses), static_cast<double>(window_.samples),
       window_.seconds, wait_s - last_wait_s_, static_cast<double>(window_.steps),
       static_cast<double>(steps_.own()), static_cast<double>(model_.progress().num_skipped)});
  last_wait_s_ = wait_s;
  // Zero: all ranks have recorded these steps with a rank 0 that is lost.
  const bool has_steps = sum_of(column(rows, 5)) > 0.0;
  const double loss = sum_of(column(rows, 0)) / sum_of(column(rows, 1));
  if (has_steps) divergence_.hear_loss(steps_.run(), loss);
  if (folder_ == nullptr) {
    window_ = {};
    return;
  }
  if (!has_steps) return;
  std::vector<double> rank_losses;
  std::vector<double> rank_rates;
  std::vector<double> rank_wait_ms;
  for (const auto& row : rows) {
    rank_losses.push_back(row[0] / row[1]);
    rank_rates.push_back(row[2] / row[3]);
    rank_wait_ms.push_back(1e3 / row[5] * row[4]);
  }
  const ProgressState state{.step = steps_.run(),
                            .total_steps = steps_.total(),
                            .loss = loss,
                            .lr = lr_,
                            .samples_per_s = steps_.in_step()
                                                 ? sum_of(column(rows, 2)) / window_.seconds
                                                 : sum_of(rank_rates),
                            .seconds_left = elapsed_s() / static_cast<double>(steps_.run()) *
                                            static_cast<double>(steps_.total() - steps_.run()),
                            .consensus_distance = last_consensus_};
  Json record = {{"kind", "step"},
                 {"step", state.step},
                 {"epoch", static_cast<double>(steps_.run() * config_.accumulate) /
                               static_cast<double>(batches_->batches_per_epoch())},
                 {"loss", state.loss},
                 {"lr", state.lr}};
  if (config_.gradients.nonfinite == NonFinite::kSkip) {
    num_skipped_ =
        steps_.in_step() ? model_.progress().num_skipped : std::llround(sum_of(column(rows, 7)));
    record["skipped_steps"] = num_skipped_;
  }
  if (steps_.is_due(config_.consensus_every)) record["consensus_distance"] = *last_consensus_;
  record["samples_per_s"] = state.samples_per_s;
  record["elapsed_s"] = elapsed_s();
  record["rank_loss"] = rank_losses;
  record["rank_samples_per_s"] = rank_rates;
  record["rank_wait_ms"] = rank_wait_ms;
  if (!steps_.in_step()) record["rank_steps"] = column(rows, 6);
  folder_->begin();
  write_or_warn([&] {
    folder_->write_metrics(record);
    folder_->write_status(status("running"), /*sync=*/false);
  });
  if (setup_.observer) {
    setup_.observer(state);
  } else {
    progress_.show(state);
  }
  window_ = {};
}

void TrainingLoop::write_evaluation(const Evaluation& evaluation) {
  evaluated_step_ = steps_.run();
  if (folder_ == nullptr) return;
  Json record = {{"kind", "eval"}, {"step", steps_.run()}};
  record.update(to_json(evaluation));
  record["elapsed_s"] = elapsed_s();
  write_or_warn([&] { folder_->write_metrics(record); });
}

void TrainingLoop::follow_timeline(bool is_over) {
  if (!step_timeline_) return;
  step_timeline_->follow(
      is_over ? std::nullopt : std::optional(steps_.run() + 1), [this] { model_.drain(); },
      setup_.logger);
}

Json TrainingLoop::status(std::string_view state) {
  Json status = {{"state", state},
                 {"step", steps_.run()},
                 {"total_steps", steps_.total()},
                 {"writer", this_process()},
                 {"elapsed_s", elapsed_s()}};
  std::vector<std::string> faults = setup_.faults;
  if (checkpointer_) {
    if (!checkpointer_->newest().empty()) status["last_checkpoint"] = checkpointer_->newest();
    for (const std::string& error : checkpointer_->errors()) {
      faults.push_back("a checkpoint could not be saved: " + error);
    }
  }
  if (divergence_.has_diverged()) {
    status["diverged_at"] = divergence_.step();
    faults.push_back(divergence_.what());
  }
  if (num_skipped_ > 0) {
    faults.push_back(concat(num_skipped_, " steps were left out: a gradient was not finite"));
  }
  status["faults"] = faults;
  if (!membership_.members.empty()) {
    status["members"] = membership_.members;
    status["epoch"] = membership_.epoch;
    status["goodput"] = goodput();
    if (!last_change_.is_null()) status["last_change"] = last_change_;
  }
  return status;
}

void TrainingLoop::write_failure(const std::exception& error) {
  if (folder_ == nullptr) {
    // Where all ranks leave together, rank 0 writes.
    if (exit_code_of(error) != ExitCode::kPeerLost) return;
    write_end_of({.path = folder_path_, .writer = folder_writer_},
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

void TrainingLoop::finish() {
  model_.drain();
  const PipelineMetrics metrics = total_metrics();
  const auto rows = gather_rows(
      setup_.communicator,
      {forward_s_, backward_s_ - metrics.pipeline_s, metrics.wait_s, metrics.update_s,
       metrics.bytes_sent, train_s_, static_cast<double>(num_samples_),
       static_cast<double>(metrics.num_wide_differences), static_cast<double>(steps_.own())});
  const auto mean = [&](std::size_t index) {
    return sum_of(column(rows, index)) / setup_.world.size;
  };
  const double steps = mean(8);
  const auto ms_per_step = [&rows](std::size_t index) {
    std::vector<double> ranks;
    for (const auto& row : rows) ranks.push_back(1e3 / row[8] * row[index]);
    return ranks;
  };
  const double train_s = mean(5);
  std::uint64_t sum = 0;
  for (const torch::Tensor& parameter : model_.parameters()) {
    sum = sum * 31 + checksum(block_of_tensor(parameter.cpu()));
  }
  const std::vector<std::string> checksums = setup_.communicator.all_gather(concat(std::hex, sum));

  // Whatever becomes of the evaluation, which may take long, what has been trained is there.
  save_models();
  close_checkpoints();
  const Evaluation evaluation = evaluate();
  heed_divergence();
  if (evaluated_step_ != steps_.run()) {
    jointly_slow(setup_.communicator, [&] {
      write_evaluation(evaluation);
      return true;
    });
  }
  const Summary summary{.world_size = setup_.world.size,
                        .steps = steps_.run(),
                        .evaluation = evaluation,
                        .train_s = train_s,
                        .samples_per_s = sum_of(column(rows, 6)) / train_s,
                        .forward_ms = 1e3 * mean(0) / steps,
                        .backward_ms = 1e3 * mean(1) / steps,
                        .wait_ms = 1e3 * mean(2) / steps,
                        .update_ms = 1e3 * mean(3) / steps,
                        .bytes_sent_per_step = mean(4) / steps,
                        .num_wide_differences = std::llround(sum_of(column(rows, 7))),
                        .rank_step_ms = ms_per_step(5),
                        .rank_forward_ms = ms_per_step(0),
                        .rank_backward_ms = ms_per_step(1),
                        .rank_wait_ms = ms_per_step(2),
                        .rank_update_ms = ms_per_step(3)};
  jointly_slow(setup_.communicator, [&] {
    if (folder_ != nullptr) write_end(*folder_, summary, checksums);
    return true;
  });
  if (folder_ == nullptr) return;
  progress_.end_line();
  if (!setup_.observer) print_summary(summary, folder_->path());
}

void TrainingLoop::write_end(RunFolder& folder, const Summary& summary,
                             const std::vector<std::string>& checksums) {
  Json record = to_json(summary);
  record["parameter_checksums"] = checksums;
  folder.write_metrics(record);
  Json end = status("done");
  end["exit_code"] = static_cast<int>(ExitCode::kDone);
  folder.write_status(end, /*sync=*/true);
}

}  // namespace gossamer::apps
