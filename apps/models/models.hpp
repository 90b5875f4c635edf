#pragma once
// The models of the trainer: classifiers of images. A new one is one file and one row in
// models.cpp.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "gossamer/core/base/options.hpp"
#include "gossamer/core/base/random.hpp"

namespace gossamer::apps {

class Classifier : public torch::nn::Module {
 public:
  /// images: [batch, 1, height, width] float32; returns [batch, num_classes] logits.
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

struct ImageShape {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t num_classes = 0;
};

/// A model whose options have been read; makes it once the data is known.
class ModelFactory {
 public:
  virtual ~ModelFactory() = default;
  /// Throws ConfigError for a shape the model cannot take.
  [[nodiscard]] virtual std::shared_ptr<Classifier> make(const ImageShape& shape) const = 0;
};

struct ModelEntry {
  std::string_view name;
  std::string_view summary;
  std::unique_ptr<const ModelFactory> (*configure)(const Options& model);
};

std::span<const ModelEntry> model_table();
std::vector<std::string> model_names();
std::unique_ptr<const ModelFactory> configure_model(std::string_view name, const Options& model);

/// Gives every linear and convolution layer new values, uniform within 1/sqrt(fan-in) as torch does
/// (He et al., 2015), but drawn from `random` alone: torch's layers draw from a generator that all
/// rank threads share, so what they drew depends on who came first.
void initialise(torch::nn::Module& module, Random& random);

}  // namespace gossamer::apps
