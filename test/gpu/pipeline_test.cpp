// Several ranks on one GPU: the conformance suite and the whole pipeline, with exchanges through
// host memory.

#include "test/comm/conformance.hpp"
#include "test/comm/elastic_ranks.hpp"
#include "test/core/expected.hpp"
#include "test/gpu/gpu_device.hpp"
#include "test/gpu/gpu_test.hpp"

#include <memory>
#include <string>
#include <tuple>

#include "base/make_stream.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "comm/collectives/staged_communicator.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

using Pipeline = GpuTest;

TEST_F(Pipeline, StagedExchangesConform) {
  for (const int num_ranks : {1, 2, 4}) {
    for (const ConformanceCase& test : conformance_cases()) {
      SCOPED_TRACE(std::string(test.name) + ", " + std::to_string(num_ranks) + " ranks");
      const auto body = [&test](Communicator& communicator, const World&) {
        const auto staged = make_staged_communicator(
            communicator, make_stream({DeviceType::kCuda, 0}, StreamPriority::kHigh),
            {.piece_bytes = 100'000});
        test.body(*staged);
        staged->barrier();
        return 0;
      };
      EXPECT_EQ(launch("threads", {.num_ranks = num_ranks, .timeout_s = 60.0}, body), 0);
    }
  }
}

/// Four ranks that mix and clip by `mode` on `topology`. With kSkip, a rank's gradient breaks in
/// step 3.
Problem clipped_gossip(const char* topology, ClipMode mode, NonFinite nonfinite) {
  Problem problem;
  problem.num_ranks = 4;
  problem.node_size = 2;
  problem.topology = make_topology(topology, {.size = 4, .node_size = 2});
  problem.rule = {.type = "accum_adamw", .eps = 1e-3, .accum_iter = 2};
  problem.lr = 0.02;
  problem.dtype = DType::kFloat32;
  problem.gradients = {.clip_mode = mode, .clip_norm = 0.6, .nonfinite = nonfinite};
  if (nonfinite == NonFinite::kSkip) {
    problem.breaks = [](int rank, int step) { return step == 3 && rank == 1; };
  }
  return problem;
}

TEST_F(Pipeline, FollowsTheRecursionOnEveryKindOfTopology) {
  for (const char* topology :
       {"one-peer-exp", "complete", "static-exp", "hierarchical", "directed-one-peer-exp"}) {
    const Problem problem = clipped_gossip(topology, ClipMode::kDelayedGlobal, NonFinite::kSkip);
    EXPECT_LE(largest_difference(run_on_gpu(problem), expected_trajectory(problem)), 1e-5)
        << topology;
  }
}

TEST_F(Pipeline, FollowsTheRecursionInEveryModeOfClipping) {
  for (const ClipMode mode : {ClipMode::kNone, ClipMode::kPerBucket, ClipMode::kDelayedGlobal}) {
    for (const NonFinite nonfinite : {NonFinite::kAbort, NonFinite::kSkip}) {
      const Problem problem = clipped_gossip("ring", mode, nonfinite);
      EXPECT_LE(largest_difference(run_on_gpu(problem), expected_trajectory(problem)), 1e-5)
          << clip_mode_names()[static_cast<std::size_t>(mode)];
    }
  }
}

TEST_F(Pipeline, AveragesGradients) {
  Problem problem;
  problem.num_ranks = 3;
  problem.algorithm = "allreduce";
  problem.dtype = DType::kFloat32;
  EXPECT_LE(largest_difference(run_on_gpu(problem), expected_trajectory(problem)), 1e-5);
}

TEST_F(Pipeline, SendsEncodedBlocks) {
  for (const auto& [algorithm, options, codec] :
       {std::tuple{"gossip", "", "bf16"},
        {"gossip", "", "int8"},
        {"gossip", "", "int4"},
        {"gradient_tracking", "", "fp16"},
        {"allreduce", "", "int8"},
        {"allreduce", "", "bf16"},
        {"outer", "every: 1, kind: diloco, momentum: 0, lr: 1", "topk"},
        {"outer", "every: 3, kind: diloco, late: 2", "int8"},
        {"outer", "every: 2, kind: noloco", "int8"}}) {
    SCOPED_TRACE(concat(algorithm, " {", options, "}, ", codec));
    Problem problem;
    problem.num_ranks = 4;
    problem.algorithm = algorithm;
    problem.algorithm_options = options;
    problem.codec = codec;
    problem.topology = make_topology("one-peer-exp", {.size = 4, .node_size = 4});
    problem.same_start = true;
    problem.dtype = DType::kFloat32;
    problem.num_steps = 24;
    // Rules on a GPU round in another way than on processors. So a value near the border between
    // two steps of a codec may go either way.
    EXPECT_LE(largest_difference(run_on_gpu(problem), run_pipeline(problem)), 2e-2);
  }
}

/// Of three ranks one dies. The others hold the step, and make it without that rank.
TEST_F(Pipeline, GoesOnWithoutARankThatDies) {
  Problem problem;
  problem.num_ranks = 3;
  problem.algorithm = "allreduce";
  problem.same_start = true;
  problem.dtype = DType::kFloat32;
  std::vector<std::vector<double>> values(3);
  LaunchOptions options{.timeout_s = 60.0, .log_level = LogLevel::kOff};
  options.fault.survives = true;
  elastic_test::run_sessions("threads", 3, options, [&](Session& session) {
    const int rank = session.world().rank;
    GpuDevice device(session.communicator());
    ToyModel model = model_on(problem, device);
    int step = 0;
    while (step < 3) train_step(problem, model, rank, step++);
    if (rank == 1) return;
    while (!model.pipeline().has_uncommitted_step()) train_step(problem, model, rank, step++);
    model.pipeline().detach();
    const auto membership = device.communicator().elastic()->reconfigure(step);
    EXPECT_EQ(membership.world.size, 2);
    while (step < membership.step) {
      model.pipeline().catch_up(membership.step);
      train_step(problem, model, rank, step++);
    }
    model.pipeline().resume({.to = {.algorithm = "allreduce", .average = true}});
    while (step < 6) train_step(problem, model, rank, step++);
    EXPECT_EQ(model.pipeline().progress().num_steps, 6);
    model.pipeline().drain();
    values[static_cast<std::size_t>(rank)] = model.values();
    device.communicator().barrier();
    session.close();
  });
  EXPECT_FALSE(values[0].empty());
  EXPECT_EQ(values[0], values[2]);
}

TEST_F(Pipeline, EndsWhenAGradientIsNotFinite) {
  Problem problem;
  problem.topology = make_topology("ring", {.size = 1, .node_size = 1});
  run_ranks(1, [&](Communicator& host, const World&) {
    GpuDevice device(host);
    ToyModel model = model_on(problem, device);
    std::vector<double> gradient(problem.num_values(), 1.0);
    model.step(gradient);
    gradient.back() = std::numeric_limits<double>::quiet_NaN();
    model.step(gradient);
    const std::vector<double> before = model.values();
    for (const double x : before) EXPECT_TRUE(std::isfinite(x));
    EXPECT_TRUE(contains(what_of<NonFiniteError>([&] { model.step(gradient); }),
                         "rank 0, step 2: the gradient of p5 is not finite"));
  });
}

}  // namespace
}  // namespace gossamer
