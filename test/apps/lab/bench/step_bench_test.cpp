// The models and data of `bench step` against numbers that PyTorch has computed from the same
// definition (scripts/lab/peer_step.py --engine local --losses).

#include "apps/lab/bench/step_bench.hpp"

#include "test/core/ranks.hpp"
#include "test/support/sanitized.hpp"

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/functional/loss.h>

#include "apps/lab/bench/reference_task.hpp"
#include "base/error.hpp"

namespace gossamer::apps {
namespace {

constexpr std::uint64_t kSeed = 1234;

double first_loss(const std::string& model, int rank) {
  const ReferenceTask task(model, kSeed);
  const auto net = task.make_model();
  const Batch batch = task.make_batches(rank, task.default_batch_size()).front();
  const torch::NoGradGuard no_grad;
  return torch::nn::functional::cross_entropy(net->forward(batch.inputs), batch.targets)
      .item<double>();
}

TEST(ReferenceTask, HasTheLossesThatPyTorchHas) {
  // Before any update, so that processors differ in the last digits only.
  EXPECT_NEAR(first_loss("mlp", 0), 2.300588, 2e-5);
  EXPECT_NEAR(first_loss("resnet20", 0), 2.476988, 2e-5);
  EXPECT_NEAR(first_loss("gpt", 0), 5.639682, 2e-5);
  // Rank 1 has data of its own: the means over both ranks.
  EXPECT_NEAR((first_loss("mlp", 0) + first_loss("mlp", 1)) / 2, 2.302889, 2e-5);
  EXPECT_NEAR((first_loss("resnet20", 0) + first_loss("resnet20", 1)) / 2, 2.522344, 2e-5);
}

TEST(ReferenceTask, HasTheSizesOfItsModels) {
  const auto count = [](const std::string& model) {
    std::int64_t sum = 0;
    for (const auto& p : ReferenceTask(model, 1).make_model()->parameters()) sum += p.numel();
    return sum;
  };
  EXPECT_EQ(count("mlp"), 2'913'290);
  EXPECT_EQ(count("resnet20"), 269'722);
  EXPECT_EQ(count("gpt"), 10'893'312);
  EXPECT_THROW(ReferenceTask("bert", 1), ConfigError);
}

TEST(ReferenceTask, CutsItsBatchesFromOneStream) {
  // Sample q is the same whatever the size of a batch.
  for (const std::string& model : ReferenceTask::model_names()) {
    const ReferenceTask task(model, 7);
    const auto small = task.make_batches(3, 2);
    const auto large = task.make_batches(3, 4);
    ASSERT_EQ(small.size(), 8U);
    EXPECT_TRUE(torch::equal(torch::cat({small[0].inputs, small[1].inputs}), large[0].inputs));
    EXPECT_TRUE(torch::equal(torch::cat({small[2].targets, small[3].targets}), large[1].targets));
    EXPECT_FALSE(torch::equal(small[0].inputs, small[1].inputs));
  }
}

TEST(ReferenceTask, DrawsTextThatFollowsItsRule) {
  const Batch batch = ReferenceTask("gpt", 5).make_batches(0, 2).front();
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<std::int64_t>{2, 128}));
  const torch::Tensor next = batch.targets.view({2, 128});
  EXPECT_TRUE(torch::equal(batch.inputs.slice(1, 1), next.slice(1, 0, 127)));
  const torch::Tensor coin = (next - 5 * batch.inputs - 7).remainder(256);
  EXPECT_TRUE(((coin == 0) | (coin == 1)).all().item<bool>());
}

std::vector<nlohmann::json> lines_of(int num_ranks, const StepBenchOptions& options) {
  std::vector<nlohmann::json> lines;
  run_ranks(num_ranks, [&](Communicator& communicator, const World& world) {
    const auto texts = run_step_bench(communicator, world, options);
    if (world.rank != 0) return;
    for (const std::string& text : texts) lines.push_back(nlohmann::json::parse(text));
  });
  return lines;
}

TEST(StepBench, ReportsTheKeysOfItsPeers) {
  const auto lines =
      lines_of(2, {.steps = 2, .warmup = 3, .batch_size = 4, .bucket_mb = 3.0, .losses = true});
  ASSERT_EQ(lines.size(), 1U);
  const nlohmann::json& line = lines[0];
  for (const char* key :
       {"engine",     "model",        "params",     "world",      "topology",      "optim",
        "optim_impl", "accum_iter",   "batch_size", "bucket_mb",  "threads",       "timed_steps",
        "step_ms",    "mean_ms",      "p10_ms",     "p90_ms",     "samples_per_s", "peak_rss_mb",
        "rss_shared", "breakdown_ms", "buckets",    "loss_first", "loss_last",     "losses"}) {
    EXPECT_TRUE(line.contains(key)) << key;
  }
  EXPECT_EQ(line["world"], 2);
  EXPECT_EQ(line["buckets"], 3);
  EXPECT_EQ(line["timed_steps"], 2);
  // Three steps of warm-up, one that finds no exchange in flight, and two that are timed.
  EXPECT_EQ(line["losses"].size(), 6U);
  EXPECT_EQ(line["losses"].front(), line["loss_first"]);
  EXPECT_EQ(line["peak_rss_mb"].size(), 2U);
  // The mean of two steps is their median.
  EXPECT_NEAR(line["mean_ms"].get<double>(), line["step_ms"].get<double>(), 0.002);
  EXPECT_GT(line["breakdown_ms"]["comm_cpu"], 0.0);
  for (const char* part :
       {"forward", "backward", "hooks", "comm_wait", "mix_update_launch", "comm_cpu"}) {
    EXPECT_TRUE(line["breakdown_ms"].contains(part)) << part;
  }
}

// That of the fewest parameters.
constexpr const char* kSmallest = "resnet20";

TEST(StepBench, LetsRanksSleep) {
  const auto lines = lines_of(2, {.engines = read_step_engines("async_gossip,gossip"),
                                  .model = kSmallest,
                                  .topology = "{name: static-exp}",
                                  .steps = kSanitized ? 2 : 4,
                                  .rounds = kSanitized ? 1 : 2,
                                  .batch_size = 4,
                                  .slow_rank = 1,
                                  .slowdown = 3.0,
                                  .sleep_ms = 2.0});
  ASSERT_EQ(lines.size(), 3U);
  for (const auto* line : {&lines[0], &lines[1]}) {
    EXPECT_EQ((*line)["sleep_ms"], 2.0);
    // Ranks that sleep for 2 and 6 ms make at most so many steps in 2 ms.
    EXPECT_GT((*line)["steps_per_fast_step"], 0.0);
    EXPECT_LE((*line)["steps_per_fast_step"], 1.0 + 1.0 / 3.0);
  }
}

TEST(StepBench, LetsEnginesTakeTurnsOnTheSameProblem) {
  const auto lines = lines_of(1, {.engines = read_step_engines("gossip,local,compute"),
                                  .model = kSmallest,
                                  .steps = 4,
                                  .warmup = 3,
                                  .rounds = 2,
                                  .batch_size = 4,
                                  .losses = true});
  ASSERT_EQ(lines.size(), 4U);
  // One rank: gossip is local training, and compute never updates.
  EXPECT_EQ(lines[0]["losses"], lines[1]["losses"]);
  EXPECT_EQ(lines[0]["loss_first"], lines[2]["loss_first"]);
  EXPECT_EQ(lines[2]["losses"][0], lines[2]["losses"][8]) << "the pool has eight batches";
  EXPECT_TRUE(lines[3]["ratios"].contains("gossip/compute"));
  EXPECT_EQ(lines[3]["rounds"], 2);
}

TEST(StepBench, LearnsWithEncodedGradientsAsWithPlainOnes) {
  const auto losses_with = [](const std::string& codec) {
    const auto lines = lines_of(2, {.engines = read_step_engines("allreduce"),
                                    .codec = codec,
                                    .steps = kSanitized ? 2 : 8,
                                    .warmup = 3,
                                    .batch_size = 16,
                                    .bucket_mb = 3.0,
                                    .losses = true});
    return lines.at(0)["losses"].get<std::vector<double>>();
  };
  const std::vector<double> plain = losses_with("fp32");
  ASSERT_EQ(plain.size(), kSanitized ? 6U : 12U);
  for (const auto& [codec, bound] : {std::pair{"int8", 0.05}, {"bf16", 0.01}, {"fp16", 0.01}}) {
    // Each codec takes long.
    if (kSanitized && std::string_view(codec) != "int8") break;
    const std::vector<double> coded = losses_with(codec);
    ASSERT_EQ(coded.size(), plain.size());
    EXPECT_EQ(coded.front(), plain.front()) << "before the first update";
    EXPECT_NE(coded, plain) << codec;
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(coded[i], plain[i], bound) << codec;
  }
}

}  // namespace
}  // namespace gossamer::apps
