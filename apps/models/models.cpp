#include "apps/models/models.hpp"

#include <array>
#include <cmath>

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "apps/models/factory.hpp"
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

constexpr std::array kMlp = {
    OptionEntry{"hidden", "units of each hidden layer; an integer from 1 to 100000, default 256"},
    OptionEntry{"layers", "hidden layers; an integer from 0 to 1000, default 2"},
};
constexpr OptionEntry kWidth = {
    "width", "channels of the first convolution; an integer from 1 to 10000, default 16"};
constexpr std::array kCnn = {kWidth};
constexpr std::array kResnet20 = {
    kWidth,
    OptionEntry{"blocks",
                "residual blocks in each of three stages; an integer from 1 to 1000, default 3"},
};
constexpr std::array kGpt = {
    OptionEntry{
        "size",
        "tiny (layers 2, d_model 64, heads 2), mini (4, 128, 4), small (6, 192, 6), base "
        "(6, 384, 6), medium (8, 512, 8) or 124m, which is GPT-2's and ties the output "
        "matrix to the embedding; one of tiny, mini, small, base, medium, 124m, default base"},
    OptionEntry{"layers",
                "transformer layers; an integer from 1 to 1000, default null: those of size"},
    OptionEntry{"d_model",
                "width of embeddings and of every layer's output; an integer from 1 to 100000, "
                "default null: that of size"},
    OptionEntry{"heads",
                "attention heads, a divisor of d_model; an integer from 1 to 10000, default null: "
                "those of size"},
};
constexpr std::array kTorchscript = {
    OptionEntry{"path",
                "the file that torch.jit.save has written; it holds code, which is run; text, must "
                "be given"},
};

constexpr std::array kTable = {
    ModelEntry{"mlp", "a perceptron", kMlp, configure_mlp},
    ModelEntry{"cnn", "two convolutions with batch normalisation, then a linear layer", kCnn,
               configure_cnn},
    ModelEntry{"resnet20", "a residual network for small images", kResnet20, configure_resnet20},
    ModelEntry{"resnet50",
               "the residual network for photographs, with torchvision's names",
               {},
               configure_resnet50},
    ModelEntry{"gpt", "a transformer that predicts the next token of a text", kGpt, configure_gpt,
               SampleKind::kTokens},
    ModelEntry{"torchscript", "your own model, exported from Python with torch.jit", kTorchscript,
               configure_torchscript, std::nullopt},
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
