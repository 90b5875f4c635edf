#include "apps/train/evaluation.hpp"

#include <algorithm>
#include <vector>

#include "apps/train/batches.hpp"
#include "core/bucket/model_average.hpp"

namespace gossamer::apps {
namespace {

// The most samples of one forward pass.
constexpr std::int64_t kArrays = 250;
constexpr std::int64_t kWindows = 16;

std::int64_t most_at_once(const Samples& samples, std::int64_t batch_size) {
  return std::min(batch_size, samples.kind() == SampleKind::kTokens ? kWindows : kArrays);
}

std::int64_t num_batches(const Samples& samples, const Scoring& how) {
  const std::int64_t count = (samples.size() - how.first + how.stride - 1) / how.stride;
  const std::int64_t most = most_at_once(samples, how.batch_size);
  return (count + most - 1) / most;
}

/// Evaluation mode, until the end of its scope.
class EvaluationMode {
 public:
  explicit EvaluationMode(Model& model) : model_(model), was_training_(model.is_training()) {
    model_.eval();
  }
  ~EvaluationMode() { model_.train(was_training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  Model& model_;
  bool was_training_;
};

}  // namespace

torch::Tensor to_device(const torch::Tensor& batch, c10::Device place) {
  if (place.is_cpu()) return batch;
  // From memory that is not pinned the copy would be waited for, and with it the step before.
  return batch.pin_memory().to(place, /*non_blocking=*/true);
}

nlohmann::ordered_json to_json(const Evaluation& evaluation) {
  nlohmann::ordered_json json;
  const Score& mean = evaluation.mean_model;
  if (mean.has_accuracy) {
    json["accuracy_mean_model"] = mean.accuracy();
    json["accuracy_worst_local"] = evaluation.accuracy_worst_local;
    json["accuracy_mean_local"] = evaluation.accuracy_mean_local;
  }
  json["loss_mean_model"] = mean.loss();
  json["loss_worst_local"] = evaluation.loss_worst_local;
  json["loss_mean_local"] = evaluation.loss_mean_local;
  if (evaluation.ema) {
    if (mean.has_accuracy) json["accuracy_ema"] = evaluation.ema->accuracy();
    json["loss_ema"] = evaluation.ema->loss();
  }
  json["consensus_distance"] = evaluation.consensus_distance;
  return json;
}

Score score(Model& model, const Samples& samples, const LossEntry& loss, const Scoring& how) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> parameters = model.parameters();
  const c10::Device place = parameters.empty() ? c10::kCPU : parameters.front().device();
  const EvaluationMode evaluation_mode(model);
  const std::int64_t most = most_at_once(samples, how.batch_size);
  Score total{.has_accuracy = loss.num_correct != nullptr};
  std::vector<std::int64_t> indices;
  for (std::int64_t next = how.first; next < samples.size();) {
    if (how.before_batch) how.before_batch();
    indices.clear();
    for (; next < samples.size() && std::ssize(indices) < most; next += how.stride) {
      indices.push_back(next);
    }
    const Batch batch = make_batch(samples, indices);
    const torch::Tensor outputs = model.forward(to_device(batch.inputs, place));
    const torch::Tensor targets = to_device(batch.targets, place);
    if (total.has_accuracy) total.num_correct += loss.num_correct(outputs, targets).item<double>();
    total.loss_sum += loss.of(outputs, targets, /*sum=*/true).item<double>();
    total.num_answers += static_cast<double>(targets.size(0));
  }
  return total;
}

Score score_together(Communicator& communicator, Model& model, const Samples& samples,
                     const LossEntry& loss, Scoring how) {
  how.first = communicator.rank();
  how.stride = communicator.size();
  const Score mine = score(model, samples, loss, how);
  // Rank 0 may have one batch more than others.
  const std::int64_t own = num_batches(samples, how);
  how.first = 0;
  const std::int64_t missing = num_batches(samples, how) - own;
  for (std::int64_t i = 0; how.before_batch && i < missing; ++i) how.before_batch();
  const std::vector<double> sums =
      sum_over_ranks(communicator, {mine.num_correct, mine.loss_sum, mine.num_answers});
  return {.num_correct = sums[0],
          .loss_sum = sums[1],
          .num_answers = sums[2],
          .has_accuracy = mine.has_accuracy};
}

}  // namespace gossamer::apps
