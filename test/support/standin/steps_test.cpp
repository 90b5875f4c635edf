// Steps of every kind of exchange, by ranks that share a device and its driver's locks: a call that
// waits for the device, while the device waits for a thread, would be a deadlock (standin.hpp).

#include "test/core/expected.hpp"
#include "test/gpu/gpu_device.hpp"
#include "test/support/standin/standin.hpp"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

Problem problem_of(const char* algorithm, const char* topology) {
  Problem problem;
  problem.num_ranks = 4;
  problem.node_size = 2;
  problem.algorithm = algorithm;
  problem.topology = make_topology(topology, {.size = 4, .node_size = 2});
  problem.same_start = true;
  problem.dtype = DType::kFloat32;
  problem.num_steps = 6;
  return problem;
}

/// The parameters after the last step.
Trajectory run(const Problem& problem) {
  Trajectory end(1, std::vector<std::vector<double>>(static_cast<std::size_t>(problem.num_ranks)));
  run_ranks(
      problem.num_ranks,
      [&](Communicator& host, const World& world) {
        GpuDevice device(host);
        ToyModel model = model_on(problem, device);
        for (int step = 0; step < problem.num_steps; ++step) {
          train_step(problem, model, world.rank, step);
        }
        model.pipeline().drain();
        end[0][static_cast<std::size_t>(world.rank)] = model.values();
      },
      problem.node_size);
  return end;
}

TEST(Steps, EndUnderTheDriversLocks) {
  // Rounds with one and with several peers, groups, nodes, trees, sums, shards.
  for (const auto& [algorithm, topology] : {std::pair{"gossip", "ring"},
                                            {"gossip", "alternating-exp-ring"},
                                            {"gossip", "directed-one-peer-exp"},
                                            {"gossip", "static-exp"},
                                            {"gossip", "hierarchical"},
                                            {"gradient_tracking", "base-k"},
                                            {"relay", "binary-tree"},
                                            {"allreduce", "ring"},
                                            {"outer", "ring"},
                                            {"node_gossip", "hierarchical"}}) {
    for (const NonFinite nonfinite : {NonFinite::kAbort, NonFinite::kSkip}) {
      SCOPED_TRACE(std::string(algorithm) + " on " + topology);
      Problem problem = problem_of(algorithm, topology);
      problem.gradients.nonfinite = nonfinite;
      const Trajectory expected = {expected_trajectory(problem).back()};
      EXPECT_LE(largest_difference(run(problem), expected), 1e-5);
    }
  }
}

/// The kernels that a rank launches in a step of 40 buckets of one parameter each.
std::int64_t launches_of_a_step(std::int64_t group_bytes, ClipMode clip_mode, DType dtype) {
  Problem problem;
  problem.num_ranks = 1;
  problem.algorithm = "local";
  problem.dtype = dtype;
  problem.sizes.assign(40, 100);
  problem.bucket_bytes = 1;
  problem.group_bytes = group_bytes;
  problem.gradients.clip_mode = clip_mode;
  std::int64_t count = 0;
  run_ranks(1, [&](Communicator& host, const World&) {
    GpuDevice device(host);
    ToyModel model = model_on(problem, device);
    train_step(problem, model, 0, 0);
    const std::int64_t before = standin::num_launches();
    train_step(problem, model, 0, 1);
    count = standin::num_launches() - before;
    model.pipeline().drain();
  });
  return count;
}

TEST(Steps, UpdateSmallBucketsByFewLaunches) {
  const std::int64_t all = kGroupBytes;
  // For each bucket two for the norms, a decision and an update.
  EXPECT_EQ(launches_of_a_step(0, ClipMode::kNone, DType::kFloat32), 160);
  // A group has 32 buckets, and another one 8.
  EXPECT_EQ(launches_of_a_step(all, ClipMode::kNone, DType::kFloat32), 8);
  EXPECT_EQ(launches_of_a_step(all, ClipMode::kPerBucket, DType::kFloat64), 8);
  EXPECT_EQ(launches_of_a_step(all, ClipMode::kGlobal, DType::kBFloat16), 8);
  // 512 bytes a bucket, so four groups of ten.
  EXPECT_EQ(launches_of_a_step(5120, ClipMode::kNone, DType::kFloat32), 16);
}

TEST(Steps, GiveTheSameBitsInGroupsOfAnySize) {
  // Under int8, a window of plain blocks comes before blocks with a grid.
  for (const auto& [algorithm, dtype, codec, num_steps] :
       {std::tuple{"gossip", DType::kFloat32, "fp32", 6},
        {"gossip", DType::kBFloat16, "int8", 18},
        {"gradient_tracking", DType::kFloat32, "int8", 18},
        {"allreduce", DType::kFloat32, "bf16", 6}}) {
    SCOPED_TRACE(concat(algorithm, ", ", name_of(dtype), ", ", codec));
    Problem problem = problem_of(algorithm, "ring");
    problem.sizes = {7, 1, 40, 0, 1033, 5, 2100, 3, 3, 3};
    problem.bucket_bytes = 1;
    problem.dtype = dtype;
    problem.codec = codec;
    problem.num_steps = num_steps;
    problem.group_bytes = 0;
    const Trajectory singles = run(problem);
    for (const std::int64_t bytes : {std::int64_t{1000}, kGroupBytes}) {
      problem.group_bytes = bytes;
      EXPECT_EQ(run(problem), singles) << bytes;
    }
  }
}

/// What the ranks send.
struct Coded {
  const char* algorithm;
  const char* options;
  const char* topology;
  std::vector<const char*> codecs;

  [[nodiscard]] Problem problem(const char* codec) const {
    Problem problem = problem_of(algorithm, topology);
    problem.algorithm_options = options;
    problem.codec = codec;
    // Several parts of a sum, and segments that begin anywhere.
    problem.sizes = {7, 1, 40, 0, 1033, 5, 2100};
    problem.bucket_bytes = 4096;
    // A window of plain blocks, then windows with a grid.
    problem.num_steps = 20;
    return problem;
  }
};

/// The stand-in runs the kernels on a processor, so they give the bits of the processor's code.
void expect_the_same_bits(const Problem& problem) {
  const Trajectory expected = {run_pipeline(problem).back()};
  EXPECT_EQ(run(problem), expected);
}

void expect_the_same_bits(const std::vector<Coded>& cases) {
  for (const Coded& coded : cases) {
    for (const char* const codec : coded.codecs) {
      SCOPED_TRACE(
          concat(coded.algorithm, " {", coded.options, "} on ", coded.topology, ", ", codec));
      expect_the_same_bits(coded.problem(codec));
    }
  }
}

TEST(CodedSteps, GiveTheBitsOfProcessorsWhereRanksMix) {
  // Pairs, several neighbours, groups that exchange, nodes.
  expect_the_same_bits({{"gossip", "", "ring", {"bf16", "fp16", "int8", "int4"}},
                        {"gossip", "", "one-peer-exp", {"bf16", "int8"}},
                        {"gossip", "", "static-ring", {"fp16", "int8", "int4"}},
                        {"gossip", "", "complete", {"int8"}},
                        {"gossip", "", "hierarchical", {"bf16", "fp16", "int8"}},
                        {"gradient_tracking", "", "base-k", {"bf16", "int8"}},
                        {"momentum_tracking", "", "ring", {"fp16", "int4"}}});
}

TEST(CodedSteps, GiveTheBitsOfProcessorsWhereRanksSum) {
  const std::vector<const char*> all = {"bf16", "fp16", "int8", "int4"};
  expect_the_same_bits({{"allreduce", "", "ring", all},
                        {"allreduce", "delay: 1", "ring", {"int8"}},
                        {"allreduce", "overlap: false", "ring", {"int4"}}});
}

TEST(CodedSteps, GiveTheBitsOfProcessorsWhereModelsAreAveraged) {
  expect_the_same_bits(
      {{"outer", "every: 2", "ring", {"bf16", "int8"}},
       {"outer", "every: 1, kind: diloco, momentum: 0, lr: 1", "ring", {"topk", "int4"}},
       {"outer", "every: 3, kind: diloco, late: 2, error_decay: 0.9", "ring", {"topk", "fp16"}},
       {"outer", "every: 2, kind: diloco, streaming: true", "ring", {"topk"}},
       {"outer", "every: 2, kind: noloco", "one-peer-exp", {"int8", "bf16"}},
       {"outer", "every: 2, kind: noloco, late: 2, streaming: true", "ring", {"int4"}},
       {"outer", "every: 2, kind: gasloc", "ring", {"fp16"}},
       {"outer", "every: 2, rounds: topology", "hierarchical", {"bf16"}}});
}

TEST(CodedSteps, GiveTheBitsOfProcessorsWithSharedMoments) {
  for (const auto& [algorithm, options, codec] :
       {std::tuple{"gossip", "share_moments: 2, share_momentum: 4", "int8"},
        {"outer", "every: 2, kind: diloco, share_moments: 4", "topk"}}) {
    SCOPED_TRACE(concat(algorithm, ", ", codec));
    Problem problem = Coded{algorithm, options, "ring", {}}.problem(codec);
    problem.rule = {.type = "adamw", .eps = 1e-3};
    problem.lr = 0.02;
    expect_the_same_bits(problem);
  }
}

TEST(CodedSteps, GiveTheBitsOfProcessorsForModelsInBfloat16) {
  for (const auto& [algorithm, options, codec] :
       {std::tuple{"gossip", "", "int8"},
        {"gossip", "", "bf16"},
        {"allreduce", "", "int4"},
        {"outer", "every: 1, kind: diloco, momentum: 0, lr: 1", "topk"}}) {
    SCOPED_TRACE(concat(algorithm, ", ", codec));
    Problem problem = Coded{algorithm, options, "ring", {}}.problem(codec);
    problem.dtype = DType::kBFloat16;
    expect_the_same_bits(problem);
  }
}

TEST(CodedSteps, GiveTheBitsOfProcessorsWhereStepsAreSkipped) {
  for (const auto& [algorithm, codec] :
       {std::pair{"gossip", "int8"}, {"gossip", "fp16"}, {"allreduce", "int8"}}) {
    SCOPED_TRACE(concat(algorithm, ", ", codec));
    Problem problem = Coded{algorithm, "", "ring", {}}.problem(codec);
    problem.gradients.nonfinite = NonFinite::kSkip;
    problem.breaks = [](int rank, int step) { return step % 5 == 3 && rank == 1; };
    problem.present = one_is_missing_of(4);
    expect_the_same_bits(problem);
  }
}

}  // namespace
}  // namespace gossamer
