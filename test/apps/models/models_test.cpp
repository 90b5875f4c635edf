// The trainer's models, and how they are scored.

#include "apps/models/models.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "apps/train/evaluation.hpp"
#include "base/error.hpp"
#include "comm/launch.hpp"

namespace gossamer::apps {
namespace {

/// Logits that say: the label is the first pixel.
class FirstPixel : public Classifier {
 public:
  torch::Tensor forward(torch::Tensor images) override {
    EXPECT_FALSE(is_training());
    EXPECT_FALSE(torch::GradMode::is_enabled());
    largest_batch = std::max(largest_batch, images.size(0));
    const torch::Tensor pixel = images.select(3, 0).select(2, 0).select(1, 0);
    const torch::Tensor label = ((pixel + 1) * 127.5).round().to(torch::kInt64);
    return torch::one_hot(label, 4).to(torch::kFloat32);
  }
  std::int64_t largest_batch = 0;
};

/// `size` images of 2 x 2, the first pixel i % 4 of image i; every fifth label is wrong.
Samples make_images(std::int64_t size) {
  Samples images{
      .size = size, .height = 2, .width = 2, .num_classes = 4, .values = {}, .labels = {}};
  for (std::int64_t i = 0; i < size; ++i) {
    for (const std::int64_t pixel : {i % 4, std::int64_t{7}, std::int64_t{0}, std::int64_t{255}}) {
      images.values.push_back(static_cast<std::uint8_t>(pixel));
    }
    images.labels.push_back(i % 5 == 0 ? (i + 1) % 4 : i % 4);
  }
  return images;
}

TEST(Score, CountsCorrectAnswersAndSumsTheLoss) {
  const Samples images = make_images(1003);
  FirstPixel model;
  model.train();
  const Score whole = score(model, images);
  EXPECT_TRUE(model.is_training());
  EXPECT_EQ(whole.num_samples, 1003.0);
  EXPECT_EQ(whole.num_correct, 1003.0 - 201.0);
  EXPECT_DOUBLE_EQ(whole.accuracy(), 802.0 / 1003.0);
  // -log softmax of logits 1, 0, 0, 0.
  const double right = std::log(std::exp(1.0) + 3.0) - 1.0;
  EXPECT_NEAR(whole.loss(), right + 201.0 / 1003.0, 1e-5);
  EXPECT_LT(model.largest_batch, 1003);

  double samples = 0.0;
  double correct = 0.0;
  for (std::int64_t first = 0; first < 3; ++first) {
    const Score part = score(model, images, first, 3);
    samples += part.num_samples;
    correct += part.num_correct;
  }
  EXPECT_EQ(samples, 1003.0);
  EXPECT_EQ(correct, 802.0);
  model.eval();
  score(model, make_images(1));
  EXPECT_FALSE(model.is_training());
}

TEST(Score, IsTheSameWhenRanksShareTheWork) {
  for (const int num_ranks : {1, 2, 3, 7}) {
    const Samples images = make_images(5);  // fewer images than ranks, too
    const LaunchOptions options{.num_ranks = num_ranks, .timeout_s = 60};
    EXPECT_EQ(launch("threads", options,
                     [&](Communicator& communicator, const World&) {
                       FirstPixel model;
                       model.eval();
                       const Score together = score_together(communicator, model, images);
                       EXPECT_EQ(together.num_samples, 5.0);
                       EXPECT_EQ(together.num_correct, 4.0);
                       EXPECT_NEAR(together.loss_sum, score(model, images).loss_sum, 1e-6);
                       return 0;
                     }),
              0);
  }
}

TEST(ImageBatch, ScalesPixelsAndPicksLabels) {
  const Samples images = make_images(10);
  const std::vector<std::int64_t> indices = {3, 5};
  const torch::Tensor batch = input_batch(images, indices);
  EXPECT_EQ(batch.sizes(), (std::vector<std::int64_t>{2, 1, 2, 2}));
  EXPECT_EQ(batch.scalar_type(), torch::kFloat32);
  EXPECT_FLOAT_EQ(batch[0][0][0][0].item<float>(), 3.0F / 127.5F - 1.0F);
  EXPECT_EQ(batch[1][0][1][0].item<float>(), -1.0F);
  EXPECT_EQ(batch[1][0][1][1].item<float>(), 1.0F);
  EXPECT_TRUE(torch::equal(label_batch(images, indices), torch::tensor({3, 2}, torch::kInt64)));
}

/// What a model takes: 6 samples of a shape.
torch::Tensor zeros_for(const ModelEntry& entry, const InputShape& shape) {
  if (entry.takes == SampleKind::kTokens) return torch::zeros({6, shape.width}, torch::kInt64);
  return torch::zeros({6, shape.channels, shape.height, shape.width});
}

TEST(Models, GiveOneLogitPerClass) {
  for (const ModelEntry& entry : model_table()) {
    const auto factory = configure_model(entry.name, Options());
    for (const InputShape& shape : {InputShape{28, 28, 10}, InputShape{5, 9, 3, 2}}) {
      const auto model = factory->make(shape);
      const torch::Tensor logits = model->forward(zeros_for(entry, shape));
      const std::int64_t rows = entry.takes == SampleKind::kTokens ? 6 * shape.width : 6;
      EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{rows, shape.num_classes})) << entry.name;
      logits.sum().backward();
      for (const auto& parameter : model->named_parameters()) {
        EXPECT_TRUE(parameter.value().grad().defined()) << entry.name << " " << parameter.key();
      }
    }
  }
  EXPECT_THROW(static_cast<void>(configure_model("cnn", Options())->make({3, 28, 10})),
               ConfigError);
  EXPECT_THROW(static_cast<void>(configure_model("resnet20", Options())->make({28, 3, 10})),
               ConfigError);
  EXPECT_THROW(static_cast<void>(configure_model("resnet", Options())), ConfigError);
  EXPECT_THROW(static_cast<void>(configure_model("gpt", Options::parse("d_model: 64, heads: 5"))),
               ConfigError);
}

TEST(Gpt, SeesNothingOfWhatComesLater) {
  const auto model = configure_model("gpt", Options::parse("layers: 2, d_model: 16, heads: 2"))
                         ->make({.height = 1, .width = 8, .num_classes = 11});
  Random random(4);
  model->reset(random);
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = torch::arange(8, torch::kInt64).unsqueeze(0);
  torch::Tensor changed = tokens.clone();
  changed[0][5] = 10;
  const torch::Tensor before = model->forward(tokens);
  const torch::Tensor after = model->forward(changed);
  EXPECT_TRUE(torch::equal(before.slice(0, 0, 5), after.slice(0, 0, 5)));
  EXPECT_FALSE(torch::allclose(before[5], after[5]));
  EXPECT_FALSE(torch::allclose(before[7], after[7])) << "what was earlier counts";
  // Shorter windows are fine.
  EXPECT_EQ(model->forward(tokens.slice(1, 0, 3)).size(0), 3);
}

TEST(ResNet20, HasTheSizeOfThePaper) {
  const auto model = configure_model("resnet20", Options())
                         ->make({.height = 32, .width = 32, .num_classes = 10, .channels = 3});
  std::int64_t convolutions = 0;
  std::int64_t numel = 0;
  for (const auto& parameter : model->parameters()) {
    convolutions += parameter.dim() == 4 ? 1 : 0;
    numel += parameter.numel();
  }
  EXPECT_EQ(convolutions, 19) << "with the linear layer 20";
  EXPECT_EQ(numel, 269'722) << "0.27 M";
}

TEST(Models, HaveTheWidthThatIsAskedFor) {
  const auto mlp = configure_model("mlp", Options::parse("hidden: 7"))->make({4, 4, 3});
  EXPECT_EQ(mlp->named_parameters()["hidden1.weight"].sizes(), (std::vector<std::int64_t>{7, 16}));
  EXPECT_EQ(mlp->named_parameters()["hidden2.weight"].sizes(), (std::vector<std::int64_t>{7, 7}));
  const auto deep = configure_model("mlp", Options::parse("hidden: 7, layers: 3"))->make({4, 4, 3});
  EXPECT_EQ(deep->parameters().size(), 8U);
  const auto linear = configure_model("mlp", Options::parse("layers: 0"))->make({4, 4, 3});
  EXPECT_EQ(linear->named_parameters()["output.weight"].sizes(),
            (std::vector<std::int64_t>{3, 16}));
  const auto cnn = configure_model("cnn", Options::parse("width: 2"))->make({8, 12, 3});
  EXPECT_EQ(cnn->named_parameters()["conv2.weight"].sizes(),
            (std::vector<std::int64_t>{4, 2, 3, 3}));
  EXPECT_EQ(cnn->named_parameters()["output.weight"].sizes(), (std::vector<std::int64_t>{3, 24}));
}

std::vector<torch::Tensor> initialised(std::string_view name, std::uint64_t seed) {
  const auto model = configure_model(name, Options())->make({8, 8, 10});
  Random random(seed);
  model->reset(random);
  return model->parameters();
}

TEST(Initialise, DependsOnItsSeedAlone) {
  for (const ModelEntry& entry : model_table()) {
    torch::manual_seed(1);
    const auto first = initialised(entry.name, 5);
    torch::manual_seed(2);
    torch::rand({17});
    const auto second = initialised(entry.name, 5);
    const auto other = initialised(entry.name, 6);
    ASSERT_EQ(first.size(), second.size());
    int differences = 0;
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(torch::equal(first[i], second[i])) << entry.name << " " << i;
      differences += torch::equal(first[i], other[i]) ? 0 : 1;
      EXPECT_TRUE(first[i].requires_grad());
      EXPECT_FALSE(first[i].grad().defined());
    }
    EXPECT_GE(differences, 4) << entry.name;
  }
}

TEST(Initialise, FillsTheIntervalThatTheFanInAllows) {
  const auto parameters = initialised("mlp", 3);
  const double bound = 1.0 / 8.0;  // 64 inputs
  EXPECT_LE(parameters[0].abs().max().item<double>(), bound);
  EXPECT_GT(parameters[0].abs().max().item<double>(), 0.99 * bound);
  EXPECT_NEAR(parameters[0].mean().item<double>(), 0.0, 0.05 * bound);
  EXPECT_LE(parameters[1].abs().max().item<double>(), bound);
}

}  // namespace
}  // namespace gossamer::apps
