#pragma once
// Measures how well a model does on samples that it was not trained on. The functions keep no
// state; a model belongs to one thread.

#include <cstdint>
#include <functional>
#include <optional>

#include <nlohmann/json.hpp>

#include "apps/data/dataset.hpp"
#include "apps/models/losses.hpp"
#include "apps/models/models.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

/// The batch on `place`. On a GPU the caller waits neither for the copy nor for the work that the
/// device has to do before it.
torch::Tensor to_device(const torch::Tensor& batch, c10::Device place);

/// Sums over answers: one answer per array, one per token.
struct Score {
  double num_correct = 0.0;
  double loss_sum = 0.0;
  double num_answers = 0.0;
  /// False: the loss knows no right and wrong, and num_correct is 0.
  bool has_accuracy = true;

  [[nodiscard]] double accuracy() const { return num_correct / num_answers; }
  [[nodiscard]] double loss() const { return loss_sum / num_answers; }
};

/// How well the ranks' models do together. Accuracies are between 0 and 1.
struct Evaluation {
  Score mean_model;
  /// The moving average of the mean model, if there is one.
  std::optional<Score> ema;
  double accuracy_worst_local = 0.0;
  double accuracy_mean_local = 0.0;
  double loss_worst_local = 0.0;
  double loss_mean_local = 0.0;
  /// Root mean square over ranks.
  double consensus_distance = 0.0;
};

/// The fields of a record. Where there are no accuracies, their fields are left out.
nlohmann::ordered_json to_json(const Evaluation& evaluation);

/// How samples are scored.
struct Scoring {
  /// The most samples of a forward pass, so that it needs no more memory than one of training.
  std::int64_t batch_size = 1;
  /// Every `stride`-th sample from `first` on.
  std::int64_t first = 0;
  std::int64_t stride = 1;
  /// Called before every forward pass, if it is there; may throw.
  std::function<void()> before_batch = {};
};

/// Scores samples in evaluation mode and without gradients. Afterwards the model is in the mode in
/// which it was before.
Score score(Model& model, const Samples& samples, const LossEntry& loss, const Scoring& how);

/// Collective. Scores all samples with a model that is the same on all ranks: each rank scores its
/// share, whatever `how` says of `first` and `stride`. Calls `before_batch` equally often on all
/// ranks.
Score score_together(Communicator& communicator, Model& model, const Samples& samples,
                     const LossEntry& loss, Scoring how);

}  // namespace gossamer::apps
