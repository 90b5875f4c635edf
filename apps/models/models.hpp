#pragma once
// The models of the trainer: classifiers of images and of tokens. To add a model, write its file
// and add a row in models.cpp.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "apps/data/dataset.hpp"
#include "base/options.hpp"
#include "base/random.hpp"
#include "base/registry.hpp"

namespace gossamer::apps {

class Classifier : public torch::nn::Module {
 public:
  /// Images: [batch, channels, height, width] float32; returns [batch, num_classes] logits.
  /// Tokens: [batch, length] int64; returns [batch * length, num_classes].
  virtual torch::Tensor forward(torch::Tensor inputs) = 0;
  /// Gives every parameter its initial value, drawn from `random` alone; see initialise().
  virtual void reset(Random& random);
};

/// The shape of one sample. Images: pixels. Tokens: the height is 1, and the width is the number of
/// tokens in a window.
struct InputShape {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t num_classes = 0;
  std::int64_t channels = 1;
};

/// Holds the options of a model, and makes the model once the shape of the data is known.
class ModelFactory {
 public:
  virtual ~ModelFactory() = default;
  /// Throws ConfigError for a shape the model cannot take.
  [[nodiscard]] virtual std::shared_ptr<Classifier> make(const InputShape& shape) const = 0;
};

struct ModelEntry {
  std::string_view name;
  std::string_view summary;
  /// The keys that `configure` reads.
  std::span<const OptionEntry> options;
  std::unique_ptr<const ModelFactory> (*configure)(const Options& model);
  SampleKind takes = SampleKind::kImages;
};

std::span<const ModelEntry> model_table();
std::vector<std::string> model_names();
const ModelEntry& find_model(std::string_view name);
std::unique_ptr<const ModelFactory> configure_model(std::string_view name, const Options& model);

/// Gives every linear and convolution layer new values, uniform within 1/sqrt(fan-in) as in torch
/// (He et al., 2015), but drawn from `random` alone. Torch's own layers draw from a generator that
/// all rank threads share, so their values would depend on the order of the threads.
void initialise(torch::nn::Module& module, Random& random);

}  // namespace gossamer::apps
