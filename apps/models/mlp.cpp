// A perceptron with two hidden layers.

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/linear.h>

#include "gossamer/apps/models/models.hpp"

namespace gossamer::apps {
namespace {

class Mlp : public Classifier {
 public:
  Mlp(std::int64_t inputs, std::int64_t hidden, std::int64_t classes)
      : first_(register_module("first", torch::nn::Linear(inputs, hidden))),
        second_(register_module("second", torch::nn::Linear(hidden, hidden))),
        output_(register_module("output", torch::nn::Linear(hidden, classes))) {}

  torch::Tensor forward(torch::Tensor images) override {
    torch::Tensor x = images.flatten(1);
    x = torch::relu(first_->forward(x));
    x = torch::relu(second_->forward(x));
    return output_->forward(x);
  }

 private:
  torch::nn::Linear first_;
  torch::nn::Linear second_;
  torch::nn::Linear output_;
};

class MlpFactory : public ModelFactory {
 public:
  explicit MlpFactory(std::int64_t hidden) : hidden_(hidden) {}
  [[nodiscard]] std::shared_ptr<Classifier> make(const ImageShape& shape) const override {
    return std::make_shared<Mlp>(shape.height * shape.width, hidden_, shape.num_classes);
  }

 private:
  std::int64_t hidden_;
};

}  // namespace

std::unique_ptr<const ModelFactory> configure_mlp(const Options& model) {
  return std::make_unique<MlpFactory>(
      model.integer("hidden", {.fallback = 256, .min = 1, .max = 100'000}));
}

}  // namespace gossamer::apps
