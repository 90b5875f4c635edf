// Tests what is in flight between two steps: draining, forgetting, counting bytes, and checking for
// writes.

#include "test/core/expected.hpp"
#include "test/core/test_topologies.hpp"

#include <latch>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "core/exchange/block_checksum.hpp"
#include "core/exchange/grid_lane.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

Problem problem_of(std::string_view topology, int n, int node_size) {
  return {.num_ranks = n,
          .node_size = node_size,
          .topology = make_topology(topology, {.size = n, .node_size = node_size})};
}

/// Called between two steps.
using Between = std::function<void(ToyModel& model, int step)>;

Trajectory train(const Problem& problem, const Between& between) {
  Trajectory trajectory = empty_trajectory(problem);
  run_ranks(
      problem.num_ranks,
      [&](Communicator& communicator, const World& world) {
        ToyModel model = model_of(problem, communicator);
        for (int step = 0; step < problem.num_steps; ++step) {
          train_step(problem, model, world.rank, step);
          between(model, step);
          trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(world.rank)] =
              model.values();
        }
        model.pipeline().drain();
      },
      problem.node_size);
  return trajectory;
}

TEST(Drain, KeepsWhatHasArrived) {
  const Problem problem = problem_of("alternating-exp-ring", 8, 2);
  const Trajectory drained = train(problem, [](ToyModel& model, int) {
    model.pipeline().drain();
    model.pipeline().drain();
  });
  EXPECT_EQ(drained, run_pipeline(problem));
}

TEST(Drain, IsAllowedBeforeTheFirstStep) {
  run_ranks(2, [](Communicator& communicator, const World&) {
    const Problem problem = problem_of("ring", 2, 2);
    ToyModel model = model_of(problem, communicator);
    model.pipeline().drain();
    model.pipeline().forget_arrived();
    EXPECT_EQ(model.values(), start_of(problem, communicator.rank()));
  });
}

TEST(Drain, LetsTheParametersBeWritten) {
  // The inbox stays valid. Without a codec the next step mixes the block that was sent with the
  // present parameters; with one it adds the difference between the blocks that were sent.
  for (const auto& [codec, rank_0, rank_1] :
       {std::tuple{"fp32", 5.5, 5.0}, {"bf16", 10.5, 9.5}, {"fp16", 10.5, 9.5}}) {
    run_ranks(2, [&](Communicator& communicator, const World& world) {
      Problem problem = problem_of("complete", 2, 2);
      problem.sizes = {4};
      problem.codec = codec;
      ToyModel model = model_of(problem, communicator);
      model.write(std::vector<double>(4, world.rank));
      model.pipeline().finish_step();
      model.pipeline().drain();
      model.write(std::vector<double>(4, 10.0));
      model.pipeline().finish_step();
      EXPECT_EQ(model.values(), std::vector<double>(4, world.rank == 0 ? rank_0 : rank_1)) << codec;
      // The exchange under way sends what this step has written.
      model.pipeline().finish_step();
      EXPECT_EQ(model.values(), std::vector<double>(4, (rank_0 + rank_1) / 2.0)) << codec;
      model.pipeline().drain();
    });
  }
}

TEST(ForgetArrived, MakesTheNextStepMixNothing) {
  Problem problem = problem_of("complete", 4, 4);
  const Trajectory forgetful = train(problem, [](ToyModel& model, int) {
    model.pipeline().drain();
    model.pipeline().forget_arrived();
  });
  problem.algorithm = "local";
  EXPECT_EQ(forgetful, run_pipeline(problem));
}

TEST(ForgetArrived, LastsForOneStepAndLeavesTheRoundsAlone) {
  // The exchange after step 3 is forgotten. The other exchanges keep their rounds.
  for (const char* codec : {"fp32", "bf16", "fp16"}) {
    Problem problem = problem_of("one-peer-exp", 4, 4);
    problem.codec = codec;
    const Trajectory trajectory = train(problem, [](ToyModel& model, int step) {
      if (step != 3) return;
      model.pipeline().drain();
      model.pipeline().forget_arrived();
    });
    Problem skipping = problem;
    const auto inner = problem.topology;
    skipping.topology = std::make_shared<FunctionTopology>(
        [inner](std::int64_t k) { return k == 3 ? complete_round({}, 4) : inner->round(k); });
    EXPECT_LE(largest_difference(trajectory, expected_trajectory(skipping)), 1e-12) << codec;
  }
}

TEST(ForgetArrived, OfOneRankAloneLeavesTheGridsAlike) {
  // Ranks with different grids would send messages of different sizes, and fail.
  Problem problem = problem_of("ring", 4, 4);
  problem.codec = "int8";
  const int window = static_cast<int>(GridLane::kWindow);
  std::vector<std::vector<double>> ends(4);
  run_ranks(4, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    for (int step = 0; step < 8 * window; ++step) {
      train_step(problem, model, world.rank, step);
      if (step != 3 * window + 2) continue;
      model.pipeline().drain();
      if (world.rank != 0) continue;
      model.write(std::vector<double>(problem.num_values(), 5.0));
      model.pipeline().forget_arrived();
    }
    model.pipeline().drain();
    ends[static_cast<std::size_t>(world.rank)] = model.values();
  });
  for (const std::vector<double>& end : ends) {
    for (std::size_t e = 0; e < end.size(); ++e) EXPECT_NEAR(end[e], ends.front()[e], 0.5) << e;
  }
}

TEST(ForgetArrived, OfOneRankAloneLeavesPublicCopiesAlike) {
  // A rank that lost messages, while its neighbours took them, would drift for ever.
  constexpr int kNumSteps = 600;
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    Problem problem = problem_of("static-ring", 4, 4);
    problem.algorithm = "choco";
    problem.algorithm_options = "fraction: 0.3";
    problem.rule = {.type = "sgd"};
    problem.lr = 0.0;
    problem.weight_decay = 0.0;
    problem.dtype = dtype;
    std::vector<std::vector<double>> middles(4);
    std::vector<std::vector<double>> ends(4);
    run_ranks(4, [&](Communicator& communicator, const World& world) {
      const auto rank = static_cast<std::size_t>(world.rank);
      ToyModel model = model_of(problem, communicator);
      for (int step = 0; step < kNumSteps; ++step) {
        train_step(problem, model, world.rank, step);
        if (step == kNumSteps / 2) middles[rank] = model.values();
        if (step != 10 || world.rank != 0) continue;
        model.pipeline().drain();
        model.write(std::vector<double>(problem.num_values(), 5.0));
        model.pipeline().forget_arrived();
      }
      model.pipeline().drain();
      ends[rank] = model.values();
    });
    for (std::size_t e = 0; e < problem.num_values(); ++e) {
      double mean = 0.0;
      for (const auto& middle : middles) mean += middle[e] / 4.0;
      for (const auto& end : ends)
        EXPECT_NEAR(end[e], mean, dtype == DType::kFloat64 ? 1e-9 : 1e-4);
    }
  }
}

/// Bytes that rank 0 has sent after `num_steps` steps.
double bytes_sent(const Problem& problem, int num_steps) {
  double bytes = 0.0;
  run_ranks(
      problem.num_ranks,
      [&](Communicator& communicator, const World& world) {
        ToyModel model = model_of(problem, communicator);
        for (int step = 0; step < num_steps; ++step) train_step(problem, model, world.rank, step);
        model.pipeline().drain();
        if (world.rank == 0) bytes = model.pipeline().metrics().bytes_sent;
      },
      problem.node_size);
  return bytes;
}

TEST(BytesSent, CountsPairsOnceAndGroupsAsAnAllReduce) {
  // Two blocks: 384 + 128 and 384 + 512 bytes, padding included.
  Problem problem = problem_of("one-peer-exp", 4, 4);
  problem.sizes = {33, 1, 40, 64};
  problem.bucket_bytes = 512;
  problem.dtype = DType::kFloat64;
  const double all = 384 + 128 + 384 + 512;
  EXPECT_EQ(bytes_sent(problem, 5), 5 * all);
  problem.topology = make_topology("complete", {.size = 4, .node_size = 4});
  EXPECT_EQ(bytes_sent(problem, 5), 5 * all * 2.0 * 3.0 / 4.0);
  problem.algorithm = "local";
  EXPECT_EQ(bytes_sent(problem, 5), 0.0);
}

TEST(BytesSent, FollowsTheRounds) {
  // Rank 0 exchanges in turn with its node, a group of four, its node, a group of four.
  Problem problem = problem_of("alternating-exp-ring", 8, 2);
  problem.sizes = {16};
  EXPECT_EQ(bytes_sent(problem, 1), 128.0);
  EXPECT_EQ(bytes_sent(problem, 2), 128.0 + 192.0);
  EXPECT_EQ(bytes_sent(problem, 8), 4 * (128.0 + 192.0));
  // A rank sits out every third round of a ring of three.
  problem = problem_of("ring", 3, 3);
  problem.sizes = {16};
  EXPECT_EQ(bytes_sent(problem, 3), 2 * 128.0);
}

TEST(BytesSent, CountsEveryNeighbour) {
  Problem problem = problem_of("static-exp", 8, 8);
  problem.sizes = {16};
  EXPECT_EQ(bytes_sent(problem, 2), 2 * 3 * 128.0);
}

TEST(BytesSent, CountsBothLevels) {
  // Nodes of 3: a sum of 2/3 of a block and back; rank 0 also exchanges and passes on the result.
  Problem problem = problem_of("hierarchical", 6, 3);
  problem.sizes = {12};
  EXPECT_DOUBLE_EQ(bytes_sent(problem, 2), 2 * (128.0 * 4.0 / 3.0 + 128.0 + 128.0));
}

TEST(BytesSent, CountsEncodedBlocks) {
  // Pairs send half; groups of three send half to each other; groups of four sum plain blocks.
  const double block = 128.0;  // padded
  for (const char* codec : {"bf16", "fp16"}) {
    const auto sent_in = [codec](std::string_view topology, int n, int node_size) {
      Problem problem = problem_of(topology, n, node_size);
      problem.sizes = {16};
      problem.dtype = DType::kFloat32;
      problem.codec = codec;
      return bytes_sent(problem, 3);
    };
    EXPECT_EQ(sent_in("ring", 2, 2), 3 * block / 2);
    EXPECT_EQ(sent_in("complete", 3, 3), 3 * 2 * block / 2);
    EXPECT_EQ(sent_in("complete", 4, 4), 3 * block * 2.0 * 3.0 / 4.0);
    EXPECT_DOUBLE_EQ(sent_in("hierarchical", 6, 3), 3 * (block * 4.0 / 3.0 + block / 2 + block));
  }
}

TEST(BytesSent, CountsPlainWindowsAndVotes) {
  Problem problem = problem_of("ring", 2, 2);
  problem.sizes = {16};
  problem.dtype = DType::kFloat32;
  problem.codec = "int8";
  const double block = 128.0;  // padded
  const int window = static_cast<int>(GridLane::kWindow);
  // The vote for the next window goes out in the step after the last round of a window.
  const double ballot = 102.0 * 4.0;
  EXPECT_EQ(bytes_sent(problem, window), window * block);
  EXPECT_EQ(bytes_sent(problem, 2 * window), 2 * window * block + ballot);
  EXPECT_EQ(bytes_sent(problem, 6 * window), (2 + 4 / 4.0) * window * block + 5 * ballot);
}

TEST(BytesSent, CountsTheLargestElements) {
  Problem problem = problem_of("static-ring", 4, 4);
  problem.algorithm = "choco";
  problem.algorithm_options = "fraction: 0.25";
  problem.sizes = {40, 5000};
  // Parts of 40, 4096 and 904 elements. Every element has 8 bytes and a place of 2 bytes.
  const double bytes = 104.0 + 1024.0 * 10.0 + 226.0 * 10.0 + 4.0;
  EXPECT_EQ(bytes_sent(problem, 3), 3 * 2 * bytes);
}

TEST(BytesSent, CountsAMessageForEachEdgeOfATree) {
  Problem problem = problem_of("binary-tree", 4, 4);
  problem.algorithm = "relay";
  problem.sizes = {16};
  // A block of 128 bytes, then its count, padded. Rank 0 has two children.
  EXPECT_EQ(bytes_sent(problem, 3), 3 * 2 * (128.0 + 128.0));
  problem.topology = make_topology("chain", {.size = 4, .node_size = 4});
  EXPECT_EQ(bytes_sent(problem, 3), 3 * (128.0 + 128.0));
}

TEST(BytesSent, CountsGradientsInAnAllReduce) {
  Problem problem = problem_of("complete", 4, 4);
  problem.algorithm = "allreduce";
  problem.sizes = {16, 16};
  problem.bucket_bytes = 1 << 20;
  // After the gradients, a message has one element per parameter.
  EXPECT_EQ(bytes_sent(problem, 3), 3 * (256.0 + 2 * 8.0) * 2.0 * 3.0 / 4.0);
  problem = problem_of("complete", 2, 2);
  problem.algorithm = "allreduce";
  problem.sizes = {16};
  EXPECT_EQ(bytes_sent(problem, 3), 3 * (128.0 + 8.0));
}

TEST(BytesSent, CountsEncodedGradientsAndPlainFlags) {
  Problem problem = problem_of("complete", 4, 4);
  problem.algorithm = "allreduce";
  problem.dtype = DType::kFloat32;
  problem.sizes = {16, 16};
  problem.bucket_bytes = 1 << 20;
  // A shard has 16 of 64 gradients, padding included, and one of two flags. Six messages a step.
  for (const auto& [codec, shard] : {std::pair{"bf16", 32}, {"fp16", 32}, {"int8", 16 + 4}}) {
    problem.codec = codec;
    EXPECT_EQ(bytes_sent(problem, 3), 3.0 * 6 * (shard + 4)) << codec;
  }
}

TEST(Metrics, TimeUpdatesAndWaits) {
  run_ranks(2, [](Communicator& communicator, const World& world) {
    const Problem problem = problem_of("complete", 2, 2);
    ToyModel model = model_of(problem, communicator);
    for (int step = 0; step < 20; ++step) train_step(problem, model, world.rank, step);
    model.pipeline().drain();
    EXPECT_GT(model.pipeline().metrics().update_s, 0.0);
    EXPECT_GT(model.pipeline().metrics().wait_s, 0.0);
    EXPECT_EQ(model.pipeline().progress().num_steps, 20);
  });
}

TEST(Checksum, NoticesEveryByte) {
  std::vector<float> values = {1.0F, 2.0F, 3.0F};
  const Block block = block_of(std::span(values));
  const std::uint64_t before = checksum(block);
  EXPECT_EQ(checksum(block), before);
  auto* bytes = reinterpret_cast<std::uint8_t*>(values.data());
  for (std::size_t i = 0; i < values.size() * sizeof(float); ++i) {
    bytes[i] ^= 1U;
    EXPECT_NE(checksum(block), before) << i;
    bytes[i] ^= 1U;
  }
  EXPECT_EQ(checksum(ConstBlock()), checksum(ConstBlock()));
}

/// Rank 1 writes a parameter between the start of its exchange and its next update, before rank 0
/// has started its exchange, so that no thread reads while rank 1 writes. Returns the message that
/// rank 1 gets.
std::string write_in_flight(bool drain_first) {
  std::string told;
  std::latch written(1);
  run_ranks(2, [&](Communicator& communicator, const World& world) {
    Problem problem = problem_of("complete", 2, 2);
    problem.sizes = {4, 50};
    problem.bucket_bytes = 1;
    ToyModel model = model_of(problem, communicator);
    if (world.rank == 0) {
      if (!drain_first) written.wait();
      model.pipeline().finish_step();
    } else {
      model.pipeline().finish_step();
      if (drain_first) model.pipeline().drain();
      model.write(std::vector<double>(54, 0.25));
      written.count_down();
    }
    const auto drain = [&] { model.pipeline().drain(); };
    const std::string first = what_of<std::logic_error>(drain);
    if (world.rank == 1) told = first;
    // Every bucket that was written throws an error of its own.
    while (!what_of<std::logic_error>(drain).empty()) continue;
  });
  return told;
}

TEST(BlockChecksum, CatchesAWriteInFlight) {
#ifdef GOSSAMER_CHECK_BLOCKS
  EXPECT_TRUE(contains(write_in_flight(false), "the parameters of bucket 0 were written while"));
#else
  EXPECT_EQ(write_in_flight(false), "");
#endif
}

TEST(BlockChecksum, AllowsAWriteAfterDrain) { EXPECT_EQ(write_in_flight(true), ""); }

}  // namespace
}  // namespace gossamer
