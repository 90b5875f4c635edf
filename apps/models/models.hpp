#pragma once
// The models of the trainer. A model turns inputs into outputs; the loss (losses.hpp) says what the
// outputs mean. To add a model, write its file and add a row in models.cpp.

#include <cstdint>
#include <memory>
#include <optional>
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

/// Inputs of a model, and the right answers.
struct Batch {
  /// Arrays: [count, channels, height, width], float32; pixels are in [-1, 1]. Tokens:
  /// [count, length], int64.
  torch::Tensor inputs;
  /// Classes: [count], int64. Numbers: [count, num_outputs], float32. Tokens: [count * length],
  /// int64, the token that follows each token.
  torch::Tensor targets;
};

class Model : public torch::nn::Module {
 public:
  /// Takes the inputs of a batch. Returns [answers, num_outputs]: one answer per array, or one per
  /// token.
  virtual torch::Tensor forward(torch::Tensor inputs) = 0;
  /// Computes the gradients of a loss of one number that comes from the outputs.
  virtual void backward(const torch::Tensor& loss) { loss.backward(); }
  /// Gives every parameter its initial value, drawn from `random` alone; see initialise().
  virtual void reset(Random& random);
};

/// Holds the options of a model, and makes the model once the shape of the data is known.
class ModelFactory {
 public:
  virtual ~ModelFactory() = default;
  /// Throws ConfigError for a shape that the model cannot take, and DataError for a file.
  [[nodiscard]] virtual std::shared_ptr<Model> make(const SampleShape& shape) const = 0;
  /// A sentence that the user must read before training; empty: there is none.
  [[nodiscard]] virtual std::string warning() const { return ""; }
};

struct ModelEntry {
  std::string_view name;
  std::string_view summary;
  /// The keys that `configure` reads.
  std::span<const OptionEntry> options;
  std::unique_ptr<const ModelFactory> (*configure)(const Options& model);
  /// Nothing: the model may take any samples.
  std::optional<SampleKind> takes = SampleKind::kArrays;
};

std::span<const ModelEntry> model_table();
std::vector<std::string> model_names();
const ModelEntry& find_model(std::string_view name);
std::unique_ptr<const ModelFactory> configure_model(std::string_view name, const Options& model);

/// Gives a parameter values of a normal distribution around 0.
void draw_normal(const torch::Tensor& parameter, double deviation, Random& random);

/// Gives every linear and convolution layer new values, uniform within 1/sqrt(fan-in) as in torch
/// (He et al., 2015), but drawn from `random` alone. Torch's own layers draw from a generator that
/// all rank threads share, so their values would depend on the order of the threads.
void initialise(torch::nn::Module& module, Random& random);

}  // namespace gossamer::apps
