#include "gossamer/apps/device_choice.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/functional/linear.h>
#include <torch/types.h>

#include "gossamer/core/base/error.hpp"

namespace gossamer::apps {
namespace {

World world_at(int local_rank, int local_size) {
  return {
      .rank = local_rank, .size = local_size, .local_rank = local_rank, .local_size = local_size};
}

TEST(DeviceChoice, ReadsItsSection) {
  const DeviceChoice choice = read_device_choice(
      Options::parse("name: cuda, share: true, exchange: host, precision: bf16"));
  EXPECT_EQ(choice.name, "cuda");
  EXPECT_TRUE(choice.share);
  EXPECT_EQ(choice.exchange, "host");
  EXPECT_TRUE(choice.bf16);
  const DeviceChoice plain = read_device_choice(Options::parse(""));
  EXPECT_EQ(plain.name, "cpu");
  EXPECT_FALSE(plain.share);
  EXPECT_EQ(plain.exchange, "auto");
  EXPECT_FALSE(plain.bf16);
  EXPECT_THROW(read_device_choice(Options::parse("name: tpu")), ConfigError);
  EXPECT_THROW(read_device_choice(Options::parse("precision: fp8")), ConfigError);
}

TEST(DeviceChoice, GivesEveryLocalRankItsGpu) {
  for (int rank = 0; rank < 4; ++rank) {
    const World world = world_at(rank, 4);
    EXPECT_EQ(device_of_rank({.name = "cpu"}, world, 4), Device{});
    EXPECT_EQ(device_of_rank({.name = "auto"}, world, 0), Device{});
    EXPECT_EQ(device_of_rank({.name = "auto"}, world, 8), (Device{DeviceType::kCuda, rank}));
    EXPECT_EQ(device_of_rank({.name = "cuda"}, world, 4), (Device{DeviceType::kCuda, rank}));
    EXPECT_EQ(device_of_rank({.name = "cuda", .share = true}, world, 2),
              (Device{DeviceType::kCuda, rank % 2}));
  }
}

TEST(DeviceChoice, RefusesMoreRanksThanGpusWithAdvice) {
  for (const char* name : {"cuda", "auto"}) {
    try {
      static_cast<void>(device_of_rank({.name = name}, world_at(1, 4), 2));
      FAIL() << name;
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("4 ranks on a node that has 2 GPUs"), std::string::npos) << text;
      EXPECT_NE(text.find("device.share: true"), std::string::npos) << text;
    }
  }
  EXPECT_THROW(static_cast<void>(device_of_rank({.name = "cuda"}, world_at(0, 1), 0)), ConfigError);
}

TEST(AutocastScope, ComputesInBf16WhileItLives) {
  const torch::Tensor x = torch::ones({2, 3});
  const torch::Tensor w = torch::ones({4, 3});
  const auto type = [&] { return torch::nn::functional::linear(x, w).scalar_type(); };
  EXPECT_EQ(type(), torch::kFloat32);
  {
    const AutocastScope scope({}, true);
    EXPECT_EQ(type(), torch::kBFloat16);
    {
      const AutocastScope off({}, false);
      EXPECT_EQ(type(), torch::kBFloat16);
    }
  }
  EXPECT_EQ(type(), torch::kFloat32);
}

}  // namespace
}  // namespace gossamer::apps
