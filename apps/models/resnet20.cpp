// The residual network for small images of He et al., "Deep Residual Learning for Image
// Recognition", CVPR 2016, section 4.2: three stages of basic blocks with 1, 2 and 4 times `width`
// channels. Shortcuts have no parameters (option A). Where a stage halves the image, the shortcut
// takes every second pixel and pads with channels of zeros.

#include <vector>

#include <torch/nn/functional/padding.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "apps/models/factory.hpp"
#include "apps/models/model_options.hpp"

namespace gossamer::apps {
namespace {

struct ResNetOptions {
  std::int64_t width = 16;
  std::int64_t blocks = 3;
};

torch::nn::Conv2d make_conv(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
}

class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1_(register_module("conv1", make_conv(in, out, stride))),
        bn1_(register_module("bn1", torch::nn::BatchNorm2d(out))),
        conv2_(register_module("conv2", make_conv(out, out, 1))),
        bn2_(register_module("bn2", torch::nn::BatchNorm2d(out))),
        padding_(out - in),
        stride_(stride) {}

  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor y =
        bn2_->forward(conv2_->forward(torch::relu(bn1_->forward(conv1_->forward(x)))));
    if (stride_ > 1) x = x.slice(2, 0, x.size(2), stride_).slice(3, 0, x.size(3), stride_);
    if (padding_ > 0) {
      x = torch::constant_pad_nd(x, {0, 0, 0, 0, padding_ / 2, padding_ - padding_ / 2});
    }
    return torch::relu(x + y);
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
  std::int64_t padding_;
  std::int64_t stride_;
};
TORCH_MODULE(BasicBlock);

class ResNet : public Model {
 public:
  ResNet(const SampleShape& shape, const ResNetOptions& options)
      : conv_(register_module(
            "conv", make_conv(need_two_halvings(shape, "resnet20").channels, options.width, 1))),
        bn_(register_module("bn", torch::nn::BatchNorm2d(options.width))) {
    std::int64_t in = options.width;
    for (const std::int64_t factor : {1, 2, 4}) {
      const std::int64_t out = factor * options.width;
      for (std::int64_t k = 0; k < options.blocks; ++k) {
        blocks_->push_back(BasicBlock(in, out, k == 0 && factor > 1 ? 2 : 1));
        in = out;
      }
    }
    register_module("blocks", blocks_);
    fc_ = register_module("fc", torch::nn::Linear(in, shape.num_outputs));
  }

  torch::Tensor forward(torch::Tensor images) override {
    const torch::Tensor x = torch::relu(bn_->forward(conv_->forward(images)));
    return fc_->forward(blocks_->forward(x).mean({2, 3}));
  }

 private:
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d bn_;
  torch::nn::Sequential blocks_;
  torch::nn::Linear fc_ = nullptr;
};

}  // namespace

std::unique_ptr<const ModelFactory> configure_resnet20(const Options& model) {
  return make_factory<ResNet>(
      ResNetOptions{.width = model.read(cnn::kWidth), .blocks = model.read(resnet20::kBlocks)});
}

}  // namespace gossamer::apps
