// Tests node_gossip against gossip, allreduce and the recursion.

#include "test/core/expected.hpp"
#include "test/core/problem.hpp"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

Problem nodes_of(int num_nodes, int node_size, const std::string& leaders) {
  Problem problem{.num_ranks = num_nodes * node_size,
                  .node_size = node_size,
                  .algorithm = "node_gossip",
                  .same_start = true};
  problem.topology =
      read_topology(Options::parse(concat("{name: hierarchical, leaders: ", leaders, "}")),
                    {.size = problem.num_ranks, .node_size = node_size});
  return problem;
}

void expect_equal_nodes(const Problem& problem, const Trajectory& trajectory) {
  for (const auto& step : trajectory) {
    for (std::size_t rank = 0; rank < step.size(); ++rank) {
      const std::size_t size = static_cast<std::size_t>(problem.node_size);
      EXPECT_EQ(step[rank], step[rank / size * size]) << rank;
    }
  }
}

TEST(NodeGossip, FollowsTheRecursionWhateverTheSizesOfShards) {
  // Buckets of one parameter have two cache lines or none: shards end within parameters, and in
  // nodes of three some are empty.
  for (const auto& [leaders, bucket_bytes] :
       {std::pair{"ring", 256}, {"complete", 1}, {"static-exp", 1}}) {
    for (const int node_size : {2, 3}) {
      SCOPED_TRACE(concat(leaders, ", nodes of ", node_size, ", buckets of ", bucket_bytes));
      Problem problem = nodes_of(3, node_size, leaders);
      problem.bucket_bytes = bucket_bytes;
      problem.rule = {.type = "accum_adam", .eps = 1e-3, .accum_iter = 2};
      problem.lr = 0.02;
      problem.gradients = {.clip_mode = ClipMode::kGlobal, .clip_norm = 0.6};
      problem.present = [](int rank, int step, std::int64_t parameter) {
        return (rank + 2 * step + 3 * static_cast<int>(parameter)) % 4 != 0;
      };
      const Trajectory expected = expected_trajectory(problem);
      const Trajectory found = run_pipeline(problem);
      EXPECT_LE(largest_difference(found, expected), 1e-12);
      expect_equal_nodes(problem, found);
      problem.dtype = DType::kFloat32;
      EXPECT_LE(largest_difference(run_pipeline(problem), expected), 1e-5);
    }
  }
}

/// Gossip of `nodes` alone: each rank computes the gradients of a whole node, one after the other.
Trajectory micro_batches(const Problem& nodes, const std::string& leaders) {
  const int node_size = nodes.node_size;
  Problem problem = nodes;
  problem.algorithm = "gossip";
  problem.num_ranks = nodes.num_ranks / node_size;
  problem.node_size = 1;
  problem.topology = make_topology(leaders, {.size = problem.num_ranks});
  problem.gradient_scale = 1.0 / node_size;
  Trajectory trajectory = empty_trajectory(problem);
  run_ranks(problem.num_ranks, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    model.pipeline().set_gradient_scale(problem.gradient_scale);
    for (int step = 0; step < problem.num_steps; ++step) {
      const std::vector<double> x = model.values();
      std::vector<double> sum(x.size());
      for (int place = 0; place < node_size; ++place) {
        const auto gradient = gradient_at(x, world.rank * node_size + place, step);
        for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += gradient[e];
      }
      for (std::int64_t i = 0; i < model.num_parameters(); ++i) model.offer(i, sum);
      model.pipeline().finish_step();
      trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(world.rank)] =
          model.values();
    }
    model.pipeline().drain();
  });
  return trajectory;
}

TEST(NodeGossip, IsGossipOfMicroBatches) {
  for (const char* leaders : {"ring", "static-exp"}) {
    for (const int node_size : {2, 3}) {
      SCOPED_TRACE(concat(leaders, ", nodes of ", node_size));
      Problem problem = nodes_of(3, node_size, leaders);
      problem.dtype = DType::kFloat32;
      problem.gradients = {.clip_mode = ClipMode::kGlobal, .clip_norm = 0.6};
      const Trajectory found = run_pipeline(problem);
      const Trajectory expected = micro_batches(problem, leaders);
      for (std::size_t step = 0; step < found.size(); ++step) {
        for (std::size_t rank = 0; rank < found[step].size(); ++rank) {
          const auto& wanted = expected[step][rank / static_cast<std::size_t>(node_size)];
          for (std::size_t e = 0; e < wanted.size(); ++e) {
            ASSERT_NEAR(found[step][rank][e], wanted[e], 1e-6) << step << ", rank " << rank;
          }
        }
      }
    }
  }
}

TEST(NodeGossip, SendsOneShardBetweenNodes) {
  // Blocks of 8 and of 14 cache lines, and two flags behind the gradients of each.
  constexpr double kAll = 64.0 * (8 + 14);
  constexpr double kFlags = 8.0 * (2 + 2);
  constexpr int kNumSteps = 5;
  struct Shards {
    int node_size;
    /// By place in the node.
    std::vector<int> lines;
  };
  for (const Shards& shards : {Shards{2, {4 + 7, 4 + 7}}, Shards{3, {2 + 4, 3 + 5, 3 + 5}}}) {
    for (const int num_nodes : {1, 2, 3}) {
      const int size = shards.node_size;
      SCOPED_TRACE(concat(num_nodes, " nodes of ", size));
      Problem problem = nodes_of(num_nodes, size, "complete");
      problem.sizes = {33, 1, 40, 64};
      problem.bucket_bytes = 512;
      run_ranks(problem.num_ranks, [&](Communicator& communicator, const World& world) {
        ToyModel model = model_of(problem, communicator);
        for (int step = 0; step < kNumSteps; ++step) train_step(problem, model, world.rank, step);
        model.pipeline().drain();
        const double shard = 64.0 * shards.lines[static_cast<std::size_t>(world.rank % size)];
        const double sums = kNumSteps * 2.0 * (size - 1) / size * (kAll + kFlags);
        // A pair sends its shard; a group of three sums shards.
        const double between =
            std::array{0.0, 1.0, 4.0 / 3.0}[static_cast<std::size_t>(num_nodes - 1)];
        // The first step gathers nothing, because nothing has been mixed.
        const double gathers = num_nodes > 1 ? (kNumSteps - 1) * (size - 1) * shard : 0.0;
        EXPECT_DOUBLE_EQ(model.pipeline().metrics().bytes_sent,
                         sums + kNumSteps * between * shard + gathers);
      });
    }
  }
}

TEST(NodeGossip, IsAllReduceInOneNode) {
  Problem problem = nodes_of(1, 3, "ring");
  const Trajectory nodes = run_pipeline(problem);
  problem.algorithm = "allreduce";
  EXPECT_EQ(run_pipeline(problem), nodes);
}

TEST(NodeGossip, IsGossipInNodesOfOneRank) {
  Problem problem = nodes_of(4, 1, "ring");
  const Trajectory nodes = run_pipeline(problem);
  problem.algorithm = "gossip";
  EXPECT_EQ(run_pipeline(problem), nodes);
}

}  // namespace
}  // namespace gossamer
