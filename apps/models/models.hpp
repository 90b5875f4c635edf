#pragma once
// The models of the trainer: classifiers of images and of tokens. A new one is one file and one row
// in models.cpp.

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

/// Tokens: height 1, and the width is the length of a window.
struct InputShape {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t num_classes = 0;
  std::int64_t channels = 1;
};

/// A model whose options have been read; makes it once the data is known.
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

/// Gives every linear and convolution layer new values, uniform within 1/sqrt(fan-in) as torch does
/// (He et al., 2015), but drawn from `random` alone: torch's layers draw from a generator that all
/// rank threads share, so what they drew depends on who came first.
void initialise(torch::nn::Module& module, Random& random);

}  // namespace gossamer::apps
