#include "apps/train/evaluation.hpp"

#include <algorithm>
#include <vector>

#include <torch/nn/functional/loss.h>

#include "core/model_average.hpp"

namespace gossamer::apps {
namespace {

// Samples of one forward pass: as many as fit without much memory.
constexpr std::int64_t kImages = 250;
constexpr std::int64_t kWindows = 16;

torch::Tensor token_batch(const Samples& samples, std::span<const std::int64_t> indices,
                          std::size_t shift) {
  const auto length = static_cast<std::size_t>(samples.width);
  torch::Tensor batch =
      torch::empty({static_cast<std::int64_t>(indices.size()), samples.width}, torch::kInt64);
  std::int64_t* out = batch.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    for (const std::uint8_t token : samples.sample(index).subspan(shift, length)) *out++ = token;
  }
  return batch;
}

}  // namespace

InputShape shape_of(const Samples& samples) {
  return {.height = samples.height, .width = samples.width, .num_classes = samples.num_classes};
}

torch::Tensor input_batch(const Samples& samples, std::span<const std::int64_t> indices) {
  if (samples.kind == SampleKind::kTokens) return token_batch(samples, indices, 0);
  torch::Tensor batch =
      torch::empty({static_cast<std::int64_t>(indices.size()), 1, samples.height, samples.width},
                   torch::kFloat32);
  float* out = batch.data_ptr<float>();
  for (const std::int64_t index : indices) {
    for (const std::uint8_t pixel : samples.sample(index)) {
      *out++ = static_cast<float>(pixel) / 127.5F - 1.0F;
    }
  }
  return batch;
}

torch::Tensor label_batch(const Samples& samples, std::span<const std::int64_t> indices) {
  if (samples.kind == SampleKind::kTokens) return token_batch(samples, indices, 1).flatten();
  torch::Tensor batch = torch::empty({static_cast<std::int64_t>(indices.size())}, torch::kInt64);
  std::int64_t* out = batch.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) *out++ = samples.labels[static_cast<std::size_t>(index)];
  return batch;
}

torch::Tensor to_device(const torch::Tensor& batch, c10::Device place) {
  if (place.is_cpu()) return batch;
  // From memory that is not pinned the copy would be waited for, and with it the step before.
  return batch.pin_memory().to(place, /*non_blocking=*/true);
}

Score score(Classifier& model, const Samples& samples, std::int64_t first, std::int64_t stride) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  const std::vector<torch::Tensor> parameters = model.parameters();
  const c10::Device place = parameters.empty() ? c10::kCPU : parameters.front().device();
  model.eval();
  const std::int64_t most = samples.kind == SampleKind::kTokens ? kWindows : kImages;
  Score total;
  std::vector<std::int64_t> indices;
  for (std::int64_t next = first; next < samples.size;) {
    indices.clear();
    for (; next < samples.size && std::ssize(indices) < most; next += stride) {
      indices.push_back(next);
    }
    const torch::Tensor logits = model.forward(to_device(input_batch(samples, indices), place));
    const torch::Tensor labels = to_device(label_batch(samples, indices), place);
    total.num_correct += logits.argmax(1).eq(labels).sum().item<double>();
    total.loss_sum +=
        torch::nn::functional::cross_entropy(
            logits, labels, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
            .item<double>();
    total.num_samples += static_cast<double>(labels.numel());
  }
  model.train(was_training);
  return total;
}

Score score_together(Communicator& communicator, Classifier& model, const Samples& samples) {
  const Score mine = score(model, samples, communicator.rank(), communicator.size());
  const std::vector<double> sums =
      sum_over_ranks(communicator, {mine.num_correct, mine.loss_sum, mine.num_samples});
  return {sums[0], sums[1], sums[2]};
}

}  // namespace gossamer::apps
