// What `outer` is in its limits, and with streaming. The recursion tests follow all its kinds step
// by step.

#include "test/core/expected.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/algorithms/algorithm.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

TEST(Outer, IsLocalSgdWithoutMomentum) {
  for (const int n : {1, 2, 3, 4, 8}) {
    for (const char* options :
         {"every: 4, momentum: 0, lr: 1", "every: 4, kind: diloco, momentum: 0, lr: 1",
          "every: 4, kind: noloco, rounds: all, momentum: 0, lr: 1",
          "every: 4, kind: gasloc, rounds: all, momentum: 0, lr: 1"}) {
      Problem problem;
      problem.num_ranks = n;
      problem.num_steps = 18;
      problem.rule = {.type = "accum_adamw", .eps = 1e-3, .accum_iter = 3};
      problem.topology = read_topology(Options::parse("{name: local-sgd, sit_out: 3}"),
                                       {.size = n, .node_size = n});
      const Trajectory local_sgd = run_pipeline(problem);
      problem.algorithm = "outer";
      problem.algorithm_options = options;
      const bool adds = contains(options, "noloco");
      // a + (mean - a) is rounded.
      EXPECT_LE(largest_difference(run_pipeline(problem), local_sgd), adds ? 1e-12 : 0.0)
          << n << " ranks, " << options;
    }
  }
}

// With an average in every step and no momentum, each step begins with the mean of all models.
TEST(Outer, IsCompleteGossipWhenItAveragesEveryStep) {
  Problem problem;
  problem.num_ranks = 4;
  problem.topology = make_topology("complete", {.size = 4, .node_size = 4});
  const Trajectory gossip = run_pipeline(problem);
  problem.algorithm = "outer";
  problem.algorithm_options = "every: 1, momentum: 0, lr: 1";
  EXPECT_EQ(run_pipeline(problem), gossip);
}

TEST(Outer, SpreadsBucketsOverACycleWhenItStreams) {
  // The most bytes that any step sends: with streaming no step sends all buckets.
  const auto most_bytes = [](const char* options) {
    double most = 0.0;
    run_ranks(2, [&](Communicator& communicator, const World& world) {
      Problem problem;
      problem.algorithm = "outer";
      problem.algorithm_options = options;
      problem.bucket_bytes = 1;
      problem.sizes = {16, 16, 16, 16};
      ToyModel model = model_of(problem, communicator);
      double before = 0.0;
      for (int step = 0; step < 8; ++step) {
        train_step(problem, model, world.rank, step);
        const double sent = model.pipeline().metrics().bytes_sent;
        if (world.rank == 0) most = std::max(most, sent - before);
        before = sent;
      }
      model.pipeline().drain();
    });
    return most;
  };
  EXPECT_EQ(most_bytes("every: 4"), 4 * 128.0);
  EXPECT_EQ(most_bytes("every: 4, streaming: true"), 128.0);
}

std::vector<double> mean_of(const std::vector<std::vector<double>>& models) {
  std::vector<double> mean(models.front().size());
  for (const std::vector<double>& x : models) {
    for (std::size_t e = 0; e < mean.size(); ++e) {
      mean[e] += x[e] / static_cast<double>(models.size());
    }
  }
  return mean;
}

TEST(Outer, MovesEachBucketInItsTurnWhenItStreams) {
  using Case = std::pair<const char*, const char*>;
  for (const auto& [options, codec] :
       {Case{"kind: slowmo", "fp32"}, Case{"kind: diloco", "fp32"}, Case{"kind: noloco", "fp32"},
        Case{"kind: gasloc", "fp32"}, Case{"kind: diloco, late: 4", "fp32"},
        Case{"kind: noloco, late: 2, blend: 0.3", "fp32"},
        Case{"kind: slowmo, rounds: topology", "fp32"}, Case{"kind: diloco", "bf16"},
        Case{"kind: noloco, late: 3", "bf16"}}) {
    for (const int n : {1, 2, 3, 4}) {
      SCOPED_TRACE(concat(n, " ranks, ", options, ", ", codec));
      Problem problem;
      problem.num_ranks = n;
      problem.num_steps = 17;
      problem.codec = codec;
      problem.same_start = true;
      problem.algorithm = "outer";
      problem.topology = make_topology("base-k", {.size = n, .node_size = n});
      problem.algorithm_options = concat(options, ", every: 5");
      const Trajectory together = run_pipeline(problem);
      problem.algorithm_options += ", streaming: true";
      const Trajectory in_turns = run_pipeline(problem);
      EXPECT_LE(largest_difference(in_turns, expected_trajectory(problem)), 1e-12);
      EXPECT_GT(largest_difference(in_turns, together), 1e-4);
    }
  }
}

// All ranks have the same curvature, so that the mean of their steps is the step of their mean.
TEST(Outer, GasLocOnTheCompleteGraphIsDiLoCoForTheMean) {
  for (const char* rounds : {"all", "topology"}) {
    Problem problem;
    problem.num_ranks = 4;
    problem.num_steps = 30;
    problem.rule = {.type = "sgd"};
    problem.same_start = true;
    problem.algorithm = "outer";
    problem.topology = make_topology("complete", {.size = 4, .node_size = 4});
    const auto means = [&](const std::string& options) {
      problem.algorithm_options = options;
      std::vector<std::vector<double>> all;
      for (const auto& models : run_pipeline(problem)) all.push_back(mean_of(models));
      return all;
    };
    const auto gasloc =
        means(concat("{kind: gasloc, every: 3, lr: 0.8, momentum: 0.6, rounds: ", rounds, "}"));
    const auto diloco = means("{kind: diloco, every: 3, lr: 0.8, momentum: 0.6}");
    for (std::size_t step = 0; step < gasloc.size(); ++step) {
      for (std::size_t e = 0; e < gasloc[step].size(); ++e) {
        EXPECT_NEAR(gasloc[step][e], diloco[step][e], 1e-12) << rounds << ", step " << step;
      }
    }
  }
}

/// The root mean square over ranks of the distance to the mean.
double spread_of(const std::vector<std::vector<double>>& models) {
  const std::vector<double> mean = mean_of(models);
  double square = 0.0;
  for (const std::vector<double>& x : models) {
    for (std::size_t e = 0; e < mean.size(); ++e) square += (x[e] - mean[e]) * (x[e] - mean[e]);
  }
  return std::sqrt(square / static_cast<double>(models.size()));
}

/// By how much models come closer in 200 averages in pairs and no other steps.
double growth_of_spread(const std::string& kind_and_more, const std::string& topology, int n) {
  Problem problem;
  problem.num_ranks = n;
  problem.num_steps = 201;
  problem.lr = 0.0;
  problem.sizes = {8};
  problem.topology = make_topology(topology, {.size = n, .node_size = n});
  problem.algorithm = "outer";
  problem.algorithm_options = concat("{every: 1, rounds: topology, kind: ", kind_and_more, "}");
  const Trajectory trajectory = run_pipeline(problem);
  return spread_of(trajectory.back()) / spread_of(trajectory.front());
}

TEST(Outer, DefaultsBringTheModelsOfPairsTogether) {
  for (const char* kind : {"diloco", "noloco", "gasloc"}) {
    for (const auto& [topology, n] : {std::pair("one-peer-exp", 8), std::pair("one-peer-exp", 16),
                                      std::pair("random-matching", 6), std::pair("base-k", 12)}) {
      EXPECT_LT(growth_of_spread(kind, topology, n), 0.1) << kind << ", " << topology << ", " << n;
    }
  }
}

// Why no default is as large as the 0.9 of GASLoC's authors: on these rounds the models drift
// apart, by a factor of 1.05 in each average.
TEST(Outer, ALargeMomentumDrivesTheModelsOfPairsApart) {
  EXPECT_GT(growth_of_spread("gasloc, momentum: 0.9", "one-peer-exp", 8), 100.0);
}

TEST(Outer, PairsSendTheirParametersOnceInACycle) {
  for (const char* kind : {"slowmo", "diloco", "noloco", "gasloc"}) {
    run_ranks(4, [&](Communicator& communicator, const World& world) {
      Problem problem;
      problem.num_ranks = 4;
      problem.topology = make_topology("one-peer-exp", {.size = 4, .node_size = 4});
      problem.algorithm = "outer";
      problem.algorithm_options = concat("{every: 5, rounds: topology, kind: ", kind, "}");
      problem.shares_memory = false;
      problem.bucket_bytes = 1;
      problem.sizes = {16, 16, 16, 16};
      ToyModel model = model_of(problem, communicator);
      for (int step = 0; step < 20; ++step) train_step(problem, model, world.rank, step);
      model.pipeline().drain();
      EXPECT_EQ(model.pipeline().metrics().bytes_sent, 4 * 4 * 128.0) << kind;
    });
  }
}

TEST(Outer, TheRoundsOfATopologyFollowOneAnother) {
  // With two averages in a period of the topology, four ranks are equal; with rounds by steps they
  // would meet the same peer again.
  Problem problem;
  problem.num_ranks = 4;
  problem.num_steps = 9;
  problem.lr = 0.0;
  problem.weight_decay = 0.0;
  problem.topology = make_topology("one-peer-exp", {.size = 4, .node_size = 4});
  problem.algorithm = "outer";
  problem.algorithm_options = "{every: 4, kind: noloco, lr: 1, momentum: 0}";
  const auto end = run_pipeline(problem).back();
  for (const std::vector<double>& x : end) {
    for (std::size_t e = 0; e < x.size(); ++e) EXPECT_NEAR(x[e], end.front()[e], 1e-12);
  }
}

// The other rank begins its average `late` - 1 steps later. Whoever waited for it in between would
// wait for ever.
TEST(Outer, NoStepWaitsForALateAverageBeforeItIsDue) {
  struct Way {
    const char* rounds;
    const char* codec;
    bool streams = false;
    Where where = Where::kHost;
  };
  // Pairs agree on the grid of int8 in their first averages.
  constexpr int kSteps = 46;
  for (const auto& [rounds, codec, streams, where] :
       {Way{"all", "fp32"}, Way{"all", "fp32", true}, Way{"all", "int8"}, Way{"all", "int4", true},
        Way{"all", "topk"}, Way{"topology", "fp32"}, Way{"topology", "bf16", true},
        Way{"topology", "int8"}, Way{"all", "topk", false, Where::kDevice},
        Way{"all", "int8", true, Where::kNccl}, Way{"topology", "int8", true, Where::kDevice}}) {
    SCOPED_TRACE(concat(rounds, ", ", codec, streams ? ", streaming, " : ", ", name_of(where)));
    std::atomic<int> num_steps_of_0 = 0;
    FakeNcclHub hub;
    run_ranks(2, [&](Communicator& communicator, const World& world) {
      Problem problem;
      problem.same_start = true;
      problem.topology = make_topology("complete", {.size = 2, .node_size = 2});
      problem.algorithm = "outer";
      problem.codec = codec;
      problem.bucket_bytes = 1;
      problem.algorithm_options = concat("{every: 4, late: 3, kind: diloco, rounds: ", rounds,
                                         ", streaming: ", streams ? "true" : "false", "}");
      TestDevice device(where, communicator, hub);
      ToyModel model = model_on(problem, device);
      for (int step = 0; step < kSteps; ++step) {
        // An average begins after step 3 of 4, and is due 3 steps later.
        if (world.rank == 1 && step % 4 == 3) {
          while (num_steps_of_0 < step + 3) std::this_thread::yield();
        }
        train_step(problem, model, world.rank, step);
        if (world.rank == 0) ++num_steps_of_0;
      }
      model.pipeline().drain();
    });
    EXPECT_EQ(num_steps_of_0, kSteps);
  }
}

}  // namespace
}  // namespace gossamer
