// The parts of the trainer: files it writes, progress, reports.

#include "test/apps/folder.hpp"
#include "test/comm/owned_sums.hpp"

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "apps/data/array_samples.hpp"
#include "apps/train/model_ema.hpp"
#include "apps/train/model_file.hpp"
#include "apps/train/rank_setup.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"

namespace gossamer::apps {
namespace {

/// Samples of one pixel with these classes.
std::shared_ptr<const Samples> with_classes(std::vector<std::int64_t> classes) {
  const auto size = std::ssize(classes);
  return std::make_shared<const ArraySamples>(
      SampleShape{.height = 1, .width = 1, .num_outputs = 10}, size,
      ArraySamples::Content{.values = std::vector<std::uint8_t>(classes.size()),
                            .labels = std::move(classes)});
}

TEST(DoubtAboutValidation, IsAboutClasses) {
  const auto train = with_classes({0, 0, 1, 1, 2, 2, 3, 3});
  const auto warning = [&](std::vector<std::int64_t> classes) {
    return validation_warning({.train = train, .validation = with_classes(std::move(classes))});
  };
  EXPECT_EQ(warning({3, 1, 2}), "");
  EXPECT_EQ(warning({3, 3, 3}), "") << "few samples may be alike by chance";
  const std::string unknown = warning({0, 4, 5, 4});
  EXPECT_TRUE(
      unknown.starts_with("3 of the 4 validation samples have classes that no training "
                          "sample has, as class 4"))
      << unknown;
  const std::string few = warning(std::vector<std::int64_t>(40, 3));
  EXPECT_TRUE(few.starts_with("the validation samples have 1 of the 4 classes")) << few;
}

TEST(ModelEma, AveragesOverTheRanks) {
  const auto body = [](Communicator& communicator, const World& world) {
    const torch::nn::Linear linear(2, 1);
    {
      const torch::NoGradGuard no_grad;
      linear->weight.fill_(world.rank);
    }
    const ModelEma ema(*linear, 0.5);
    OwnedSums owned(communicator);
    ema.use(owned);
    EXPECT_EQ(linear->weight[0][0].item<float>(), 0.5F);
    return 0;
  };
  EXPECT_EQ(launch("threads", {.num_ranks = 2, .log_level = LogLevel::kError}, body), 0);
}

TEST(ModelEma, TakesNothingOfARankWithoutWeight) {
  const auto body = [](Communicator& communicator, const World& world) {
    const torch::nn::Linear linear(2, 1);
    {
      const torch::NoGradGuard no_grad;
      linear->weight.fill_(world.rank == 1 ? std::numeric_limits<double>::quiet_NaN() : 3.0);
    }
    ModelEma ema(*linear, 0.5);
    ema.share(communicator, world.rank == 1 ? 0.0 : 2.0);
    ema.use(communicator);
    EXPECT_EQ(linear->weight[0][0].item<float>(), 3.0F);
    return 0;
  };
  EXPECT_EQ(launch("threads", {.num_ranks = 2, .log_level = LogLevel::kError}, body), 0);
}

TEST(ModelFile, HoldsNamesTypesShapesAndValues) {
  const Folder folder;
  const torch::Tensor grid = torch::arange(6, torch::kFloat32).reshape({2, 3});
  const std::vector<NamedTensor> tensors = {
      {"layer.weight", grid.t()},  // not in row-major order in memory
      {"layer.\"bias\"", torch::tensor({1.5, -2.5}, torch::kFloat64)},
      {"count", torch::tensor({std::int64_t{1} << 40U}, torch::kInt64).squeeze()},
      {"empty", torch::empty({0, 4})},
      {"channels", torch::arange(16, torch::kFloat32)
                       .reshape({1, 4, 2, 2})
                       .contiguous(at::MemoryFormat::ChannelsLast)
                       .requires_grad_()}};
  write_model_file(folder.file("model.safetensors"), tensors);
  EXPECT_EQ(folder.list(), std::vector<std::string>{"model.safetensors"});

  const ParsedSafetensors file = parse_safetensors(read_file(folder.file("model.safetensors")));
  ASSERT_EQ(file.header.size(), tensors.size());
  std::size_t end = 0;
  for (const auto& [name, entry] : file.header.items()) {
    EXPECT_EQ(entry.size(), 3U);
    EXPECT_EQ(entry.at("data_offsets")[0].get<std::size_t>(), end) << "no gaps are allowed";
    end = entry.at("data_offsets")[1].get<std::size_t>();
  }
  EXPECT_EQ(end, file.values.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(file.header.at(name).at("shape").get<std::vector<std::int64_t>>(),
              tensor.sizes().vec());
  }
  EXPECT_EQ(file.header["layer.weight"]["dtype"], "F32");
  EXPECT_EQ(file.header["layer.\"bias\""]["dtype"], "F64");
  EXPECT_EQ(file.header["count"]["dtype"], "I64");
  // The wide elements come first.
  EXPECT_EQ(values_at<double>(file.values, 0, 16), (std::vector<double>{1.5, -2.5}));
  EXPECT_EQ(values_at<std::int64_t>(file.values, 16, 24), std::vector{std::int64_t{1} << 40U});
  EXPECT_EQ(values_at<float>(file.values, 24, 48), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(values_at<float>(file.values, 48, 112)[5], 5.0F);
}

TEST(ModelFile, ReplacesAFileWholeOrNotAtAll) {
  const Folder folder;
  const std::string path = folder.file("model.safetensors");
  write_model_file(path, {});
  EXPECT_EQ(parse_safetensors(read_file(path)).header.size(), 0U);
  write_model_file(path, {{"a", torch::zeros({2})}});
  const std::string before = read_file(path);
  EXPECT_THROW(write_model_file(path, {{"a", torch::zeros({3}, torch::kComplexFloat)}}),
               CheckpointError);
  EXPECT_EQ(read_file(path), before);
  EXPECT_THROW(write_model_file(folder.file("no/such/folder"), {}), CheckpointError);
}

}  // namespace
}  // namespace gossamer::apps
