#include "gossamer/apps/evaluation.hpp"

#include <algorithm>
#include <vector>

#include <torch/nn/functional/loss.h>

#include "gossamer/core/engine/consensus.hpp"

namespace gossamer::apps {
namespace {

constexpr std::int64_t kBatch = 250;

}  // namespace

torch::Tensor image_batch(const LabelledImages& images, std::span<const std::int64_t> indices) {
  torch::Tensor batch = torch::empty(
      {static_cast<std::int64_t>(indices.size()), 1, images.height, images.width}, torch::kFloat32);
  float* out = batch.data_ptr<float>();
  for (const std::int64_t index : indices) {
    for (const std::uint8_t pixel : images.image(index)) {
      *out++ = static_cast<float>(pixel) / 127.5F - 1.0F;
    }
  }
  return batch;
}

torch::Tensor label_batch(const LabelledImages& images, std::span<const std::int64_t> indices) {
  torch::Tensor batch = torch::empty({static_cast<std::int64_t>(indices.size())}, torch::kInt64);
  std::int64_t* out = batch.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) *out++ = images.labels[static_cast<std::size_t>(index)];
  return batch;
}

Score score(Classifier& model, const LabelledImages& images, std::int64_t first,
            std::int64_t stride) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  Score total;
  std::vector<std::int64_t> indices;
  for (std::int64_t next = first; next < images.size;) {
    indices.clear();
    for (; next < images.size && std::ssize(indices) < kBatch; next += stride) {
      indices.push_back(next);
    }
    const torch::Tensor logits = model.forward(image_batch(images, indices));
    const torch::Tensor labels = label_batch(images, indices);
    total.num_correct += logits.argmax(1).eq(labels).sum().item<double>();
    total.loss_sum +=
        torch::nn::functional::cross_entropy(
            logits, labels, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
            .item<double>();
    total.num_samples += static_cast<double>(indices.size());
  }
  model.train(was_training);
  return total;
}

Score score_together(Communicator& communicator, Classifier& model, const LabelledImages& images) {
  const Score mine = score(model, images, communicator.rank(), communicator.size());
  const std::vector<double> sums =
      sum_over_ranks(communicator, {mine.num_correct, mine.loss_sum, mine.num_samples});
  return {sums[0], sums[1], sums[2]};
}

}  // namespace gossamer::apps
