// The residual network of He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
// table 1, 50 layers, with the stride in the 3 x 3 convolution of a block. Names, order and shapes
// of parameters and buffers are those of torchvision's resnet50, so that weights move between the
// two through safetensors files.

#include <array>
#include <cmath>

#include <torch/nn/functional/pooling.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "apps/models/factory.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

constexpr std::array<std::int64_t, 4> kBlocks = {3, 4, 6, 3};
// The last convolution of a block has this many times the channels of the others.
constexpr std::int64_t kExpansion = 4;
// Channels of the first convolution.
constexpr std::int64_t kWidth50 = 64;

torch::nn::Conv2d make_conv(std::int64_t in, std::int64_t out, std::int64_t side,
                            std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, side).stride(stride).padding(side / 2).bias(false));
}

class BottleneckImpl : public torch::nn::Module {
 public:
  BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t stride)
      : conv1_(register_module("conv1", make_conv(in, width, 1, 1))),
        bn1_(register_module("bn1", torch::nn::BatchNorm2d(width))),
        conv2_(register_module("conv2", make_conv(width, width, 3, stride))),
        bn2_(register_module("bn2", torch::nn::BatchNorm2d(width))),
        conv3_(register_module("conv3", make_conv(width, kExpansion * width, 1, 1))),
        bn3_(register_module("bn3", torch::nn::BatchNorm2d(kExpansion * width))) {
    if (stride == 1 && in == kExpansion * width) return;
    downsample_ = register_module(
        "downsample", torch::nn::Sequential(make_conv(in, kExpansion * width, 1, stride),
                                            torch::nn::BatchNorm2d(kExpansion * width)));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = torch::relu(bn1_->forward(conv1_->forward(x)));
    y = torch::relu(bn2_->forward(conv2_->forward(y)));
    y = bn3_->forward(conv3_->forward(y));
    return torch::relu(y + (downsample_ ? downsample_->forward(x) : x));
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
  torch::nn::Conv2d conv3_;
  torch::nn::BatchNorm2d bn3_;
  torch::nn::Sequential downsample_ = nullptr;
};
TORCH_MODULE(Bottleneck);

class ResNet50 : public Model {
 public:
  explicit ResNet50(const SampleShape& shape)
      : conv1_(register_module(
            "conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(shape.channels, kWidth50, 7)
                                           .stride(2)
                                           .padding(3)
                                           .bias(false)))),
        bn1_(register_module("bn1", torch::nn::BatchNorm2d(kWidth50))) {
    std::int64_t in = kWidth50;
    for (std::size_t stage = 0; stage < kBlocks.size(); ++stage) {
      const std::int64_t inner = kWidth50 << stage;
      torch::nn::Sequential blocks;
      for (std::int64_t k = 0; k < kBlocks[stage]; ++k) {
        blocks->push_back(Bottleneck(in, inner, k == 0 && stage > 0 ? 2 : 1));
        in = kExpansion * inner;
      }
      stages_.push_back(register_module(concat("layer", stage + 1), blocks));
    }
    fc_ = register_module("fc", torch::nn::Linear(in, shape.num_outputs));
  }

  torch::Tensor forward(torch::Tensor images) override {
    torch::Tensor x = torch::relu(bn1_->forward(conv1_->forward(images)));
    x = torch::max_pool2d(x, 3, 2, 1);
    for (torch::nn::Sequential& stage : stages_) x = stage->forward(x);
    return fc_->forward(x.mean({2, 3}));
  }

  /// Convolutions are normal with a variance of 2 / fan-out (He et al., "Delving Deep into
  /// Rectifiers", ICCV 2015), as torchvision has it.
  void reset(Random& random) override {
    Model::reset(random);
    const torch::NoGradGuard no_grad;
    for (const auto& layer : modules()) {
      const auto* conv = layer->as<torch::nn::Conv2dImpl>();
      if (conv == nullptr) continue;
      const auto fan_out = static_cast<double>(conv->weight.numel() / conv->weight.size(1));
      draw_normal(conv->weight, std::sqrt(2.0 / fan_out), random);
    }
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  std::vector<torch::nn::Sequential> stages_;
  torch::nn::Linear fc_ = nullptr;
};

class ResNet50Factory : public ModelFactory {
 public:
  [[nodiscard]] std::shared_ptr<Model> make(const SampleShape& shape) const override {
    return std::make_shared<ResNet50>(shape);
  }
};

}  // namespace

std::unique_ptr<const ModelFactory> configure_resnet50(const Options& /*model*/) {
  return std::make_unique<const ResNet50Factory>();
}

}  // namespace gossamer::apps
