#include "apps/train/evaluation.hpp"

#include <vector>

#include "apps/train/batches.hpp"
#include "core/model_average.hpp"

namespace gossamer::apps {
namespace {

// Samples of one forward pass: as many as fit without much memory.
constexpr std::int64_t kArrays = 250;
constexpr std::int64_t kWindows = 16;

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

Score score(Model& model, const Samples& samples, const LossEntry& loss, std::int64_t first,
            std::int64_t stride) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  const std::vector<torch::Tensor> parameters = model.parameters();
  const c10::Device place = parameters.empty() ? c10::kCPU : parameters.front().device();
  model.eval();
  const std::int64_t most = samples.kind() == SampleKind::kTokens ? kWindows : kArrays;
  Score total{.has_accuracy = loss.num_correct != nullptr};
  std::vector<std::int64_t> indices;
  for (std::int64_t next = first; next < samples.size();) {
    indices.clear();
    for (; next < samples.size() && std::ssize(indices) < most; next += stride) {
      indices.push_back(next);
    }
    const Batch batch = make_batch(samples, indices);
    const torch::Tensor outputs = model.forward(to_device(batch.inputs, place));
    const torch::Tensor targets = to_device(batch.targets, place);
    if (total.has_accuracy) total.num_correct += loss.num_correct(outputs, targets).item<double>();
    total.loss_sum += loss.of(outputs, targets, /*sum=*/true).item<double>();
    total.num_answers += static_cast<double>(targets.size(0));
  }
  model.train(was_training);
  return total;
}

Score score_together(Communicator& communicator, Model& model, const Samples& samples,
                     const LossEntry& loss) {
  const Score mine = score(model, samples, loss, communicator.rank(), communicator.size());
  const std::vector<double> sums =
      sum_over_ranks(communicator, {mine.num_correct, mine.loss_sum, mine.num_answers});
  return {.num_correct = sums[0],
          .loss_sum = sums[1],
          .num_answers = sums[2],
          .has_accuracy = mine.has_accuracy};
}

}  // namespace gossamer::apps
