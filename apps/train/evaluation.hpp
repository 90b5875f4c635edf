#pragma once
// How good a model is on the validation samples.

#include <cstdint>
#include <span>

#include "apps/data/dataset.hpp"
#include "apps/models/models.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

InputShape shape_of(const Samples& samples);
/// Images: [count, 1, height, width], float32 in [-1, 1]. Tokens: [count, length], int64.
torch::Tensor input_batch(const Samples& samples, std::span<const std::int64_t> indices);
/// Images: [count], int64. Tokens: [count * length], the token after each.
torch::Tensor label_batch(const Samples& samples, std::span<const std::int64_t> indices);

/// The batch on `place`. On a GPU the caller does not wait for the copy, nor for what the device
/// has still to do before it.
torch::Tensor to_device(const torch::Tensor& batch, c10::Device place);

/// Over answers: one per image, one per token.
struct Score {
  double num_correct = 0.0;
  double loss_sum = 0.0;
  double num_samples = 0.0;

  [[nodiscard]] double accuracy() const { return num_correct / num_samples; }
  [[nodiscard]] double loss() const { return loss_sum / num_samples; }
};

/// Scores every `stride`-th sample from `first` on, in evaluation mode without gradients; the mode
/// the model was in comes back.
Score score(Classifier& model, const Samples& samples, std::int64_t first = 0,
            std::int64_t stride = 1);

/// Collective, for a model that is the same on all ranks: each scores its share of the samples.
Score score_together(Communicator& communicator, Classifier& model, const Samples& samples);

}  // namespace gossamer::apps
