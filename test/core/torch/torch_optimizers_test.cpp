// Torch's own optimizers against the reference in double, which all other tests compare with.

#include "test/optim/reference.hpp"

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace gossamer {
namespace {

constexpr std::int64_t kNumel = 7;
constexpr double kLr = 0.03;
constexpr double kDecay = 0.05;

std::vector<double> gradient_of(int step) {
  std::vector<double> gradient(kNumel);
  for (std::size_t e = 0; e < gradient.size(); ++e) {
    gradient[e] = std::sin(2.0 * step + static_cast<double>(e));
  }
  return gradient;
}

template <class Options>
std::unique_ptr<torch::optim::Optimizer> adam_of(const torch::Tensor& parameter,
                                                 const reference::Rule& rule) {
  Options options(kLr);
  options.betas({rule.beta1, rule.beta2});
  options.eps(rule.eps).weight_decay(kDecay);
  if constexpr (std::is_same_v<Options, torch::optim::AdamOptions>) {
    return std::make_unique<torch::optim::Adam>(std::vector{parameter}, options);
  } else {
    return std::make_unique<torch::optim::AdamW>(std::vector{parameter}, options);
  }
}

std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const torch::Tensor& parameter,
                                                         const reference::Rule& rule) {
  if (rule.type == "adam") return adam_of<torch::optim::AdamOptions>(parameter, rule);
  if (rule.type == "adamw") return adam_of<torch::optim::AdamWOptions>(parameter, rule);
  torch::optim::SGDOptions options(kLr);
  options.momentum(rule.momentum).nesterov(rule.nesterov).weight_decay(kDecay);
  return std::make_unique<torch::optim::SGD>(std::vector{parameter}, options);
}

TEST(TorchsOptimizers, DoAsTheReference) {
  const std::vector<reference::Rule> rules = {{.type = "sgd"},
                                              {.type = "sgd", .momentum = 0.8},
                                              {.type = "sgd", .momentum = 0.8, .nesterov = true},
                                              {.type = "adam", .beta1 = 0.7},
                                              {.type = "adamw", .beta2 = 0.95, .eps = 1e-4}};
  for (const reference::Rule& rule : rules) {
    SCOPED_TRACE(rule.type + " {" + rule.yaml() + "}");
    std::vector<double> expected = gradient_of(-1);
    torch::Tensor actual = torch::tensor(expected, torch::kFloat64).requires_grad_();
    const auto optimizer = torch_optimizer(actual, rule);
    reference::Optimizer reference(rule, expected.size());
    for (int step = 0; step < 12; ++step) {
      const std::vector<double> gradient = gradient_of(step);
      actual.mutable_grad() = torch::tensor(gradient, torch::kFloat64);
      optimizer->step();
      reference.step(expected, gradient, kLr, kDecay);
      for (std::size_t e = 0; e < expected.size(); ++e) {
        ASSERT_NEAR(actual[static_cast<std::int64_t>(e)].item<double>(), expected[e], 1e-13);
      }
    }
  }
}

}  // namespace
}  // namespace gossamer
