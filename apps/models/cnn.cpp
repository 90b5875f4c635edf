// A small convolutional network with batch normalisation (Ioffe and Szegedy, 2015). Its parameters
// are mixed; its running statistics are not.

#include <torch/nn/functional/pooling.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "apps/models/factory.hpp"
#include "apps/models/model_options.hpp"

namespace gossamer::apps {
namespace {

torch::nn::Conv2d make_conv(std::int64_t in, std::int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
}

class Cnn : public Model {
 public:
  Cnn(const SampleShape& shape, std::int64_t width)
      : conv1_(
            register_module("conv1", make_conv(need_two_halvings(shape, "cnn").channels, width))),
        norm1_(register_module("norm1", torch::nn::BatchNorm2d(width))),
        conv2_(register_module("conv2", make_conv(width, 2 * width))),
        norm2_(register_module("norm2", torch::nn::BatchNorm2d(2 * width))),
        output_(register_module(
            "output", torch::nn::Linear(2 * width * (shape.height / 4) * (shape.width / 4),
                                        shape.num_outputs))) {}

  torch::Tensor forward(torch::Tensor images) override {
    torch::Tensor x = torch::relu(norm1_->forward(conv1_->forward(images)));
    x = torch::max_pool2d(x, 2);
    x = torch::relu(norm2_->forward(conv2_->forward(x)));
    x = torch::max_pool2d(x, 2);
    return output_->forward(x.flatten(1));
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
  torch::nn::Linear output_;
};

}  // namespace

std::unique_ptr<const ModelFactory> configure_cnn(const Options& model) {
  return make_factory<Cnn>(model.read(cnn::kWidth));
}

}  // namespace gossamer::apps
