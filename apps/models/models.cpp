#include "apps/models/models.hpp"

#include <array>
#include <cmath>

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "apps/models/factory.hpp"
#include "apps/models/model_options.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

std::unique_ptr<const ModelFactory> configure_mlp(const Options& model);
std::unique_ptr<const ModelFactory> configure_cnn(const Options& model);
std::unique_ptr<const ModelFactory> configure_resnet20(const Options& model);
std::unique_ptr<const ModelFactory> configure_resnet50(const Options& model);
std::unique_ptr<const ModelFactory> configure_gpt(const Options& model);
std::unique_ptr<const ModelFactory> configure_torchscript(const Options& model);

namespace {

constexpr std::array kTable = {
    ModelEntry{"mlp", "a perceptron", mlp::kOptions, configure_mlp},
    ModelEntry{"cnn", "two convolutions with batch normalisation, then a linear layer",
               cnn::kOptions, configure_cnn},
    ModelEntry{"resnet20", "a residual network for small images", resnet20::kOptions,
               configure_resnet20},
    ModelEntry{"resnet50",
               "the residual network for photographs, with torchvision's names",
               {},
               configure_resnet50},
    ModelEntry{"gpt", "a transformer that predicts the next token of a text", gpt::kOptions,
               configure_gpt, SampleKind::kTokens},
    ModelEntry{"torchscript", "your own model, exported from Python with torch.jit",
               torchscript::kOptions, configure_torchscript, std::nullopt},
};

/// Gives a parameter the values that `draw` returns, one call for each element in order.
template <class Draw>
void fill(const torch::Tensor& parameter, const Draw& draw) {
  torch::Tensor values = parameter.detach();
  float* data = values.data_ptr<float>();
  for (std::int64_t i = 0; i < values.numel(); ++i) data[i] = static_cast<float>(draw());
}

void initialise_layer(const torch::Tensor& weight, const torch::Tensor& bias, Random& random) {
  const auto fan_in = static_cast<double>(weight.numel() / weight.size(0));
  const double bound = 1.0 / std::sqrt(fan_in);
  const auto draw = [&] { return random.uniform(-bound, bound); };
  fill(weight, draw);
  if (bias.defined()) fill(bias, draw);
}

}  // namespace

std::span<const ModelEntry> model_table() { return kTable; }

std::vector<std::string> model_names() { return names_of(kTable); }

std::unique_ptr<const ModelFactory> configure_model(std::string_view name, const Options& model) {
  return find_model(name).configure(model);
}

const ModelEntry& find_model(std::string_view name) { return row_of(kTable, "model", name); }

const SampleShape& need_two_halvings(const SampleShape& shape, std::string_view model) {
  // Two halvings must leave at least one pixel.
  constexpr std::int64_t kMinSide = 4;
  if (shape.height >= kMinSide && shape.width >= kMinSide) return shape;
  throw ConfigError(concat("model.name: ", model, " needs images of at least ", kMinSide, " x ",
                           kMinSide, " pixels, these have ", shape.height, " x ", shape.width));
}

void draw_normal(const torch::Tensor& parameter, double deviation, Random& random) {
  fill(parameter, [&] { return deviation * random.normal(); });
}

void Model::reset(Random& random) { initialise(*this, random); }

void initialise(torch::nn::Module& module, Random& random) {
  const torch::NoGradGuard no_grad;
  for (const auto& layer : module.modules()) {
    if (const auto* linear = layer->as<torch::nn::LinearImpl>()) {
      initialise_layer(linear->weight, linear->bias, random);
    } else if (const auto* conv = layer->as<torch::nn::Conv2dImpl>()) {
      initialise_layer(conv->weight, conv->bias, random);
    }
  }
}

}  // namespace gossamer::apps
