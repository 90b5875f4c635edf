#include "apps/train/evaluator.hpp"

#include <algorithm>
#include <cmath>

#include "apps/train/agreement.hpp"
#include "apps/train/model_file.hpp"
#include "apps/train/precision.hpp"
#include "core/bucket/model_average.hpp"
#include "topology/rank_round.hpp"

namespace gossamer::apps {

Evaluator::Evaluator(const RunConfig& config, const TrainingSetup& setup, StepRunner& runner,
                     const StepCount& steps)
    : config_(config), setup_(setup), runner_(runner), steps_(steps) {}

Consensus Evaluator::measure_consensus() {
  const TimelineScope span(runner_.timeline(), {.what = "consensus"});
  const AverageScope scope = runner_.model().global_average(false);
  return consensus_in(scope);
}

Consensus Evaluator::consensus_in(const AverageScope& scope) {
  double square = 0.0;
  for (const torch::Tensor& parameter : runner_.model().parameters()) {
    if (!parameter.requires_grad()) continue;
    square += parameter.detach().to(torch::kFloat64).square().sum().item<double>();
  }
  const double distance = scope.consensus_distance();
  // Rank 0's norm counts, so that all ranks have the same bits.
  const std::vector<double> sums =
      sum_over_ranks(setup_.communicator, {distance * distance, setup_.is_first() ? square : 0.0});
  const Consensus result{.distance = std::sqrt(sums[0] / setup_.world.size),
                         .norm = std::sqrt(sums[1])};
  divergence_.note_consensus(steps_.run(), result.distance, result.norm, setup_.world.size);
  return result;
}

Evaluation Evaluator::evaluate(RunFolder* folder, const std::function<void()>& before_batch) {
  Model& net = runner_.net();
  const Samples& samples = *setup_.data->validation;
  const Scoring how{.batch_size = config_.batch_size, .before_batch = before_batch};
  // A scope for each model: autocast keeps the parameters it has cast until its end.
  const auto in_precision = [this](const auto& score_model) {
    const AutocastScope autocast(runner_.device().device(), config_.device.precision);
    return score_model();
  };
  const auto together = [&] {
    return in_precision(
        [&] { return score_together(setup_.communicator, net, samples, runner_.loss(), how); });
  };
  const Score mine = in_precision([&] { return score(net, samples, runner_.loss(), how); });
  const std::vector<double> accuracies = gather_numbers(setup_.communicator, mine.accuracy());
  const std::vector<double> losses = gather_numbers(setup_.communicator, mine.loss());
  const AverageScope scope = runner_.model().global_average();
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
  if (folder != nullptr && is_best(result)) mean = copy_to_host(net);
  if (auto& ema = runner_.ema()) {
    // The scope gives the model its own values back.
    ema->use(setup_.communicator);
    result.ema = together();
  }
  // No signal ends the evaluation from here on, so it counts once.
  if (is_best(result)) save(folder, RunFolder::kBestModel, mean);
  return result;
}

void Evaluator::save(RunFolder* folder, std::string_view name,
                     const std::vector<NamedTensor>& tensors) {
  all_or_none_slow(setup_.communicator, [&] {
    if (folder != nullptr) write_model_file(folder->begin_file(name), tensors);
    return true;
  });
}

void Evaluator::save_models(RunFolder* folder) {
  const AverageScope scope = runner_.model().global_average();
  const auto save_as = [&](std::string_view name) {
    save(folder, name,
         folder != nullptr ? copy_to_host(runner_.net()) : std::vector<NamedTensor>());
  };
  save_as(RunFolder::kModel);
  auto& ema = runner_.ema();
  if (!ema) return;
  ema->use(setup_.communicator);
  save_as(RunFolder::kEmaModel);
}

bool Evaluator::is_best(const Evaluation& evaluation) const {
  const double loss = evaluation.mean_model.loss();
  return config_.eval_every > 0 && !has_record() && std::isfinite(loss) &&
         (best_step_ == 0 || loss < best_loss_);
}

void Evaluator::count(const Evaluation& evaluation) {
  divergence_.note_loss(steps_.run(), evaluation.mean_model.loss());
  if (config_.eval_every == 0 || has_record()) return;
  ++num_worse_;
  if (!is_best(evaluation)) return;
  best_loss_ = evaluation.mean_model.loss();
  best_step_ = steps_.run();
  num_worse_ = 0;
}

bool Evaluator::is_due_after_resume(std::int64_t restored) const {
  if (restored != steps_.run()) return false;
  const std::int64_t every = config_.eval_every;
  const std::int64_t recorded = std::max<std::int64_t>(recorded_step_, 0);
  return every > 0 && !steps_.is_over() && steps_.run() / every > recorded / every;
}

void Evaluator::visit(StateVisitor& visitor) {
  divergence_.visit(visitor);
  visitor.number("train/best_loss", best_loss_);
  visitor.number("train/best_step", best_step_);
  visitor.number("train/num_worse", num_worse_);
  visitor.number("train/evaluated_step", recorded_step_);
}

void Evaluator::visit_common(StateVisitor& visitor) {
  divergence_.visit(visitor);
  visitor.number("best_loss", best_loss_);
  visitor.number("best_step", best_step_);
  visitor.number("num_worse", num_worse_);
  // Integers are not negative here (SharedNumbers).
  std::int64_t recorded = recorded_step_ + 1;
  visitor.number("evaluated", recorded);
  recorded_step_ = recorded - 1;
}

}  // namespace gossamer::apps
