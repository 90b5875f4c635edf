// A decoder-only transformer that predicts the next token (Radford et al., "Language Models are
// Unsupervised Multitask Learners", 2019). It has learned positions, normalisation before the
// attention and the feed-forward part, GELU, and no dropout. The size 124m is that of GPT-2, and
// like GPT-2 uses the embedding as output matrix; the others have an output matrix of their own.

#include <array>
#include <cmath>
#include <string_view>

#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "apps/models/factory.hpp"
#include "apps/models/model_options.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

// Standard deviation of initial weights, as in GPT-2.
constexpr double kInitialScale = 0.02;

struct GptOptions {
  std::int64_t layers = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  /// True: the embedding is the output matrix, too.
  bool tied = false;
};

struct GptSize {
  std::string_view name;
  GptOptions options;
};

constexpr std::array kSizes = {
    GptSize{"tiny", {.layers = 2, .width = 64, .heads = 2}},
    GptSize{"mini", {.layers = 4, .width = 128, .heads = 4}},
    GptSize{"small", {.layers = 6, .width = 192, .heads = 6}},
    GptSize{"base", {.layers = 6, .width = 384, .heads = 6}},
    GptSize{"medium", {.layers = 8, .width = 512, .heads = 8}},
    GptSize{"124m", {.layers = 12, .width = 768, .heads = 12, .tied = true}},
};

torch::nn::LayerNorm make_norm(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

/// As PyTorch's Linear computes it. torch::nn::Linear adds the bias in a pass of its own.
torch::Tensor fused_linear(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(std::int64_t width, std::int64_t heads)
      : heads_(heads),
        qkv_(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        proj_(register_module("proj", torch::nn::Linear(width, width))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const std::int64_t batch = x.size(0);
    const std::int64_t length = x.size(1);
    const std::int64_t width = x.size(2);
    const auto parts = fused_linear(qkv_, x).split(width, 2);
    const auto by_head = [&](const torch::Tensor& part) {
      return part.view({batch, length, heads_, width / heads_}).transpose(1, 2);
    };
    const torch::Tensor y = at::scaled_dot_product_attention(
        by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), {}, 0.0, /*is_causal=*/true);
    return fused_linear(proj_, y.transpose(1, 2).reshape({batch, length, width}));
  }

 private:
  std::int64_t heads_;
  torch::nn::Linear qkv_;
  torch::nn::Linear proj_;
};
TORCH_MODULE(Attention);

class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(std::int64_t width)
      : fc_(register_module("fc", torch::nn::Linear(width, 4 * width))),
        proj_(register_module("proj", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return fused_linear(proj_, torch::gelu(fused_linear(fc_, x)));
  }

 private:
  torch::nn::Linear fc_;
  torch::nn::Linear proj_;
};
TORCH_MODULE(FeedForward);

class LayerImpl : public torch::nn::Module {
 public:
  LayerImpl(std::int64_t width, std::int64_t heads)
      : ln1_(register_module("ln1", make_norm(width))),
        attn_(register_module("attn", Attention(width, heads))),
        ln2_(register_module("ln2", make_norm(width))),
        mlp_(register_module("mlp", FeedForward(width))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = x + attn_->forward(ln1_->forward(x));
    return x + mlp_->forward(ln2_->forward(x));
  }

 private:
  torch::nn::LayerNorm ln1_;
  Attention attn_;
  torch::nn::LayerNorm ln2_;
  FeedForward mlp_;
};
TORCH_MODULE(Layer);

class Gpt : public Model {
 public:
  Gpt(const SampleShape& shape, const GptOptions& options)
      : num_layers_(options.layers),
        wte_(register_module("wte", torch::nn::Embedding(shape.num_outputs, options.width))),
        wpe_(register_module("wpe", torch::nn::Embedding(shape.width, options.width))) {
    for (std::int64_t k = 0; k < options.layers; ++k) {
      layers_->push_back(Layer(options.width, options.heads));
    }
    register_module("layers", layers_);
    ln_ = register_module("ln", make_norm(options.width));
    if (options.tied) return;
    head_ = register_module(
        "head",
        torch::nn::Linear(torch::nn::LinearOptions(options.width, shape.num_outputs).bias(false)));
  }

  /// tokens: [batch, length] int64; returns [batch * length, num_outputs].
  torch::Tensor forward(torch::Tensor tokens) override {
    const torch::Tensor places = torch::arange(tokens.size(1), tokens.options());
    const torch::Tensor x = wte_->forward(tokens) + wpe_->forward(places);
    const torch::Tensor y = ln_->forward(layers_->forward(x));
    return (head_ ? head_->forward(y) : at::linear(y, wte_->weight)).flatten(0, 1);
  }

  /// Initial values: matrices are normal with a standard deviation of 0.02. Matrices that write
  /// into the residual stream get less, by the root of their number, so that the stream's variance
  /// does not grow with depth. Biases are 0, norms 1.
  void reset(Random& random) override {
    const torch::NoGradGuard no_grad;
    const double into_stream = kInitialScale / std::sqrt(2.0 * static_cast<double>(num_layers_));
    for (const auto& entry : named_parameters()) {
      torch::Tensor parameter = entry.value();
      if (parameter.dim() < 2) {
        parameter.fill_(entry.key().ends_with("weight") ? 1.0 : 0.0);
        continue;
      }
      draw_normal(parameter, entry.key().ends_with("proj.weight") ? into_stream : kInitialScale,
                  random);
    }
  }

 private:
  std::int64_t num_layers_;
  torch::nn::Embedding wte_;
  torch::nn::Embedding wpe_;
  torch::nn::Sequential layers_;
  torch::nn::LayerNorm ln_ = nullptr;
  torch::nn::Linear head_ = nullptr;
};

}  // namespace

std::unique_ptr<const ModelFactory> configure_gpt(const Options& model) {
  GptOptions options = row_of(kSizes, "size", model.read(gpt::kSize)).options;
  options.layers = model.read(gpt::kLayers).value_or(options.layers);
  options.width = model.read(gpt::kWidth).value_or(options.width);
  options.heads = model.read(gpt::kHeads).value_or(options.heads);
  if (options.width % options.heads != 0) {
    model.fail("heads", concat("is ", options.heads, ", which does not divide model.d_model, ",
                               options.width, ", allowed: a divisor of it"));
  }
  return make_factory<Gpt>(options);
}

}  // namespace gossamer::apps
