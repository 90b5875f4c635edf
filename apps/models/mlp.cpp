// A multi-layer perceptron.

#include <vector>

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/linear.h>

#include "apps/models/factory.hpp"
#include "apps/models/model_options.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

struct MlpOptions {
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
};

class Mlp : public Model {
 public:
  Mlp(const SampleShape& shape, const MlpOptions& options) {
    std::int64_t inputs = shape.channels * shape.height * shape.width;
    for (std::int64_t layer = 1; layer <= options.layers; ++layer) {
      hidden_.push_back(
          register_module(concat("hidden", layer), torch::nn::Linear(inputs, options.hidden)));
      inputs = options.hidden;
    }
    output_ = register_module("output", torch::nn::Linear(inputs, shape.num_outputs));
  }

  torch::Tensor forward(torch::Tensor images) override {
    torch::Tensor x = images.flatten(1);
    for (torch::nn::Linear& layer : hidden_) x = torch::relu(layer->forward(x));
    return output_->forward(x);
  }

 private:
  std::vector<torch::nn::Linear> hidden_;
  torch::nn::Linear output_ = nullptr;
};

}  // namespace

std::unique_ptr<const ModelFactory> configure_mlp(const Options& model) {
  return make_factory<Mlp>(
      MlpOptions{.hidden = model.read(mlp::kHidden), .layers = model.read(mlp::kLayers)});
}

}  // namespace gossamer::apps
