#pragma once
// Measures how well a model does on samples that it was not trained on. Also makes LibTorch batches
// of samples, for training as well. The functions keep no state; a model belongs to one thread.

#include <cstdint>
#include <span>

#include "apps/data/dataset.hpp"
#include "apps/models/models.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

InputShape shape_of(const Samples& samples);
/// The inputs of the samples with these indices, on the host. Images: [count, 1, height, width],
/// float32 in [-1, 1]. Tokens: [count, length], int64.
torch::Tensor input_batch(const Samples& samples, std::span<const std::int64_t> indices);
/// The right answers, on the host. Images: [count], int64. Tokens: [count * length], int64, the
/// token that follows each token.
torch::Tensor label_batch(const Samples& samples, std::span<const std::int64_t> indices);

/// The batch on `place`. On a GPU the caller waits neither for the copy nor for the work that the
/// device has to do before it.
torch::Tensor to_device(const torch::Tensor& batch, c10::Device place);

/// Sums over answers: one answer per image, one per token.
struct Score {
  double num_correct = 0.0;
  double loss_sum = 0.0;
  double num_samples = 0.0;

  [[nodiscard]] double accuracy() const { return num_correct / num_samples; }
  [[nodiscard]] double loss() const { return loss_sum / num_samples; }
};

/// Scores every `stride`-th sample from `first` on, in evaluation mode and without gradients.
/// Afterwards the model is in the mode in which it was before.
Score score(Classifier& model, const Samples& samples, std::int64_t first = 0,
            std::int64_t stride = 1);

/// Collective. Scores all samples with a model that is the same on all ranks: each rank scores its
/// share.
Score score_together(Communicator& communicator, Classifier& model, const Samples& samples);

}  // namespace gossamer::apps
