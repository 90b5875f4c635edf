#include "apps/train/precision.hpp"

#include <gtest/gtest.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include "base/error.hpp"

namespace gossamer::apps {
namespace {

TEST(Precision, HasNames) {
  for (const std::string& name : precision_names()) EXPECT_NO_THROW(precision(name));
  EXPECT_EQ(precision("bf16_parameters"), Precision::kBf16Parameters);
  EXPECT_THROW(precision("fp8"), ConfigError);
}

TEST(AutocastScope, ComputesInBf16WhileItLives) {
  const torch::Tensor x = torch::ones({2, 3});
  const torch::Tensor w = torch::ones({4, 3});
  const auto type = [&] { return torch::nn::functional::linear(x, w).scalar_type(); };
  EXPECT_EQ(type(), torch::kFloat32);
  {
    const AutocastScope scope({}, Precision::kBf16);
    EXPECT_EQ(type(), torch::kBFloat16);
    {
      const AutocastScope off({}, Precision::kFloat32);
      EXPECT_EQ(type(), torch::kBFloat16);
    }
  }
  EXPECT_EQ(type(), torch::kFloat32);
}

TEST(SetParameterTypes, RoundsMatricesOnly) {
  for (const std::string& name : precision_names()) {
    torch::nn::Sequential model(torch::nn::Linear(4, 3),
                                torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})));
    set_parameter_types(*model, precision(name));
    for (const auto& entry : model->named_parameters()) {
      const bool rounded = name == "bf16_parameters" && entry.key() == "0.weight";
      EXPECT_EQ(entry.value().scalar_type(), rounded ? torch::kBFloat16 : torch::kFloat32)
          << name << " " << entry.key();
      EXPECT_TRUE(entry.value().requires_grad());
    }
  }
}

}  // namespace
}  // namespace gossamer::apps
