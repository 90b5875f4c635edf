// A rule of somebody else's between mixing and sending: the same bits as the optimizer's own pass,
// with every algorithm, codec and way of sending.

#include "optim/external_optimizer.hpp"

#include "test/base/thrown.hpp"
#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/problem.hpp"
#include "test/core/test_topologies.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

/// Four ranks on two nodes, with gradient descent.
Problem problem_of(const AlgorithmVariant& variant, std::string_view topology) {
  Problem problem;
  problem.num_ranks = 4;
  problem.node_size = 2;
  problem.algorithm = variant.first;
  problem.algorithm_options = variant.second;
  problem.topology = make_topology(topology_for(variant.first, topology),
                                   {.size = problem.num_ranks, .node_size = problem.node_size});
  problem.rule = {.type = "sgd"};
  problem.same_start = true;
  problem.num_steps = 9;
  // Some gradients are missing, and some steps of a rank have none.
  problem.present = [](int rank, int step, std::int64_t parameter) {
    return (rank + step + parameter) % 4 != 0;
  };
  return problem;
}

/// Whether the algorithm runs with gradient descent.
bool takes(const AlgorithmVariant& variant) {
  // These need moments of an optimizer, or states that the ranks of a node share.
  return std::string_view(variant.first) != "momentum_tracking" &&
         std::string_view(variant.second) != "shard: optimizer";
}

void expect_the_same(Problem problem) {
  const Trajectory expected = run_pipeline(problem);
  problem.has_external_optimizer = true;
  for (const bool sees_whole_step : {false, true}) {
    problem.rule_sees_whole_step = sees_whole_step;
    EXPECT_EQ(run_pipeline(problem), expected)
        << problem.algorithm << ": {" << problem.algorithm_options << "}, " << problem.codec << ", "
        << name_of(problem.dtype) << ", " << name_of(problem.where)
        << (problem.shares_memory ? "" : ", messages") << (sees_whole_step ? ", whole steps" : "");
  }
}

TEST(ExternalOptimizer, GivesTheBitsOfTheOptimizerWithEveryAlgorithm) {
  for (const AlgorithmVariant& variant : algorithm_variants()) {
    if (!takes(variant)) continue;
    for (const std::string_view topology : {"ring", "one-peer-exp"}) {
      for (const bool shares_memory : {true, false}) {
        Problem problem = problem_of(variant, topology);
        problem.shares_memory = shares_memory;
        expect_the_same(problem);
      }
    }
  }
}

TEST(ExternalOptimizer, GivesTheBitsOfTheOptimizerWithEveryCodec) {
  for (const char* const codec : {"bf16", "fp16", "int8"}) {
    for (const char* const algorithm : {"gossip", "node_gossip", "late_average"}) {
      Problem problem = problem_of({algorithm, ""}, "ring");
      if (!AlgorithmChoice(algorithm).entry().takes_codec) continue;
      problem.codec = codec;
      problem.dtype = DType::kFloat32;
      problem.num_steps = 40;
      expect_the_same(problem);
    }
  }
}

TEST(ExternalOptimizer, GivesTheBitsOfTheOptimizerForEveryType) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    for (const ClipMode clip : {ClipMode::kNone, ClipMode::kPerBucket, ClipMode::kGlobal}) {
      Problem problem = problem_of({"gossip", ""}, "one-peer-exp");
      problem.dtype = dtype;
      problem.gradients = {.clip_mode = clip, .clip_norm = 0.3};
      expect_the_same(problem);
      problem.algorithm = "allreduce";
      expect_the_same(problem);
    }
  }
}

TEST(ExternalOptimizer, LeavesOutTheStepsThatThePolicyLeavesOut) {
  Problem problem = problem_of({"gossip", ""}, "ring");
  problem.gradients = {.nonfinite = NonFinite::kSkip};
  problem.breaks = [](int rank, int step) { return rank == 1 && step % 3 == 1; };
  expect_the_same(problem);
}

TEST(ExternalOptimizer, WaitsForAStreamThatLagsBehind) {
  for (const Where where : kLaggingPlaces) {
    Problem problem = problem_of({"gossip", ""}, "ring");
    problem.where = where;
    expect_the_same(problem);
    problem.gradients = {.clip_mode = ClipMode::kPerBucket, .clip_norm = 0.3};
    expect_the_same(problem);
  }
}

TEST(ExternalOptimizer, SeesAllBucketsOfAStepInOneCall) {
  run_ranks(2, [](Communicator& communicator, const World& world) {
    Problem problem = problem_of({"gossip", ""}, "ring");
    problem.num_ranks = 2;
    problem.topology = make_topology("ring", {.size = 2, .node_size = 2});
    problem.has_external_optimizer = true;
    problem.rule_sees_whole_step = true;
    Pipeline::Config config = config_of(problem);
    std::vector<std::size_t> calls;
    config.external_optimizer = [&calls](std::span<const ExternalStep> steps) {
      calls.push_back(steps.size());
    };
    ToyModel model = model_of(problem, communicator, std::move(config));
    const std::size_t num_buckets = model.pipeline().buckets().size();
    ASSERT_GT(num_buckets, 1U);
    for (int step = 0; step < 3; ++step) train_step(problem, model, world.rank, step);
    EXPECT_EQ(calls, std::vector<std::size_t>(3, num_buckets));
    model.pipeline().drain();
  });
}

TEST(ExternalOptimizer, IsRefusedBesideAnOptimizerAndForSharedStates) {
  run_ranks(
      4,
      [](Communicator& communicator, const World&) {
        Problem problem = problem_of({"node_gossip", "shard: optimizer"}, "ring");
        problem.has_external_optimizer = true;
        EXPECT_TRUE(
            contains(what_of<ConfigError>([&] { model_of(problem, communicator); }), "shard"));
        problem.algorithm_options = "";
        Pipeline::Config config = config_of(problem);
        config.optimizer = make_optimizer("sgd");
        EXPECT_TRUE(contains(
            what_of<ConfigError>([&] { model_of(problem, communicator, std::move(config)); }),
            "two rules"));
      },
      2);
}

TEST(ExternalOptimizer, IsRefusedForSharedStatesBeforeAnythingChanges) {
  run_ranks(
      4,
      [](Communicator& communicator, const World& world) {
        Problem problem = problem_of({"node_gossip", ""}, "ring");
        problem.has_external_optimizer = true;
        ToyModel model = model_of(problem, communicator);
        train_step(problem, model, world.rank, 0);
        const AlgorithmSwitch to{.algorithm = {"node_gossip", Options::parse("shard: optimizer")},
                                 .topology = problem.topology};
        EXPECT_TRUE(contains(what_of<ConfigError>([&] { model.pipeline().switch_to(to); }),
                             "take shard: none"));
        train_step(problem, model, world.rank, 1);
        model.pipeline().drain();
      },
      2);
}

TEST(ExternalOptimizer, EndsTheStepWithItsError) {
  run_ranks(2, [](Communicator& communicator, const World&) {
    Problem problem = problem_of({"gossip", ""}, "ring");
    problem.num_ranks = 2;
    problem.topology = make_topology("ring", {.size = 2, .node_size = 2});
    problem.has_external_optimizer = true;
    Pipeline::Config config = config_of(problem);
    config.external_optimizer = [](std::span<const ExternalStep>) {
      throw std::runtime_error("a bad rule");
    };
    ToyModel model = model_of(problem, communicator, std::move(config));
    EXPECT_EQ(what_of<std::runtime_error>([&] { model.pipeline().finish_step(); }), "a bad rule");
  });
}

}  // namespace
}  // namespace gossamer
