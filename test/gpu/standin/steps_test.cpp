// Steps of every kind of exchange, by ranks that share a device and its driver's locks: a call that
// waits for the device, while the device waits for a thread, would be a deadlock (standin.hpp).

#include "test/core/expected.hpp"
#include "test/gpu/gpu_device.hpp"
#include "test/gpu/standin/standin.hpp"

#include <gtest/gtest.h>

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

TEST(Steps, EndWhereTheHostEncodesAverages) {
  for (const auto& [options, codec] : {std::pair{"every: 1, kind: diloco", "topk"},
                                       {"every: 2, kind: diloco, late: 2", "int4"},
                                       {"every: 2, kind: noloco", "int8"},
                                       {"every: 2, kind: noloco, streaming: true", "bf16"}}) {
    for (const char* const topology : {"ring", "hierarchical"}) {
      SCOPED_TRACE(std::string(options) + ", " + codec + ", " + topology);
      Problem problem = problem_of("outer", topology);
      problem.algorithm_options = options;
      problem.codec = codec;
      problem.num_steps = 24;
      const Trajectory expected = {run_pipeline(problem).back()};
      EXPECT_LE(largest_difference(run(problem), expected), 1e-4);
    }
  }
}

}  // namespace
}  // namespace gossamer
