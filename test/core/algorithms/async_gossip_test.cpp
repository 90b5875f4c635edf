// Asynchronous gossip in a pipeline: ranks that make different numbers of steps.

#include "test/core/problem.hpp"

#include <barrier>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/bucket/model_average.hpp"
#include "core/state/state_copy.hpp"
#include "optim/schedule.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

Problem async_problem(int num_ranks, const std::string& options = "") {
  return {.num_ranks = num_ranks,
          .algorithm = "async_gossip",
          .algorithm_options = options,
          .topology = make_topology("static-exp", {.size = num_ranks, .node_size = num_ranks}),
          .rule = {.type = "sgd", .momentum = 0.0},
          .weight_decay = 0.0};
}

/// The mean of the ranks' models by their masses. Collective.
std::vector<double> weighted_mean(Communicator& communicator, ToyModel& model) {
  std::vector<double> values = model.values();
  const double weight = model.pipeline().model_weight();
  for (double& value : values) value *= weight / communicator.size();
  return sum_over_ranks(communicator, std::move(values));
}

TEST(AsyncGossip, KeepsTheMeanWhereNothingIsUpdated) {
  Problem problem = async_problem(4, "max_staleness: 3");
  problem.lr = 0.0;
  run_ranks(4, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    const std::vector<double> before = weighted_mean(communicator, model);
    // In the end every rank has made another number of steps.
    for (int step = 0; step < 60 + world.rank; ++step) {
      train_step(problem, model, world.rank, step);
    }
    model.pipeline().drain();
    const std::vector<double> mean = weighted_mean(communicator, model);
    const std::vector<double> values = model.values();
    for (std::size_t e = 0; e < mean.size(); ++e) {
      EXPECT_NEAR(mean[e], before[e], 1e-12);
      // How near they come depends on how late messages are.
      EXPECT_NEAR(values[e], mean[e], 1e-2);
    }
    const auto masses = gather_numbers(communicator, model.pipeline().model_weight());
    EXPECT_NEAR(std::accumulate(masses.begin(), masses.end(), 0.0), 4.0, 1e-12);
    EXPECT_GT(model.pipeline().metrics().bytes_sent, 0.0);
  });
}

TEST(AsyncGossip, HandsItsMeanOn) {
  Problem problem = async_problem(3);
  problem.lr = 0.0;
  run_ranks(3, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    const std::vector<double> before = weighted_mean(communicator, model);
    for (int step = 0; step < 10; ++step) train_step(problem, model, world.rank, step);
    model.pipeline().switch_to({.algorithm = "allreduce"});
    EXPECT_EQ(model.pipeline().model_weight(), 1.0);
    const std::vector<double> values = model.values();
    for (std::size_t e = 0; e < values.size(); ++e) EXPECT_NEAR(values[e], before[e], 1e-12);
  });
}

/// The mean model after training in which rank 0 makes four steps while rank 1 makes one. Rank r
/// has the function |x - r|^2 / 2. No rank may wait for another one in a step, because it would
/// wait at the turn.
double mean_at_unequal_rates(const std::string& options, int steps_of_fast) {
  Problem problem = async_problem(2, options);
  problem.sizes = {1};
  const auto start = std::vector<double>{0.3};
  std::barrier<> turn(2);
  double mean = 0.0;
  run_ranks(2, [&](Communicator& communicator, const World& world) {
    Pipeline::Config config = config_of(problem);
    config.schedule = make_schedule("constant", {.lr = 0.01});
    auto infos = parameters_of_sizes(problem.sizes, problem.dtype);
    const BucketPlan plan = plan_buckets(infos, declared_order(1), problem.bucket_bytes);
    ToyModel model(communicator, std::move(config), std::move(infos), plan, start);
    for (int round = 0; round < 600; ++round) {
      for (int step = 0; step < (world.rank == 0 ? steps_of_fast : 1); ++step) {
        const std::vector<double> gradient = {model.values().front() - world.rank};
        model.offer(0, std::span<const double>(gradient));
        model.pipeline().finish_step();
      }
      // Messages arrive in the meantime.
      std::this_thread::sleep_for(std::chrono::microseconds(500));
      turn.arrive_and_wait();
    }
    model.pipeline().drain();
    const double found = weighted_mean(communicator, model).front();
    if (world.rank == 0) mean = found;
  });
  return mean;
}

TEST(AsyncGossip, WeighsRanksByTheirSteps) {
  EXPECT_NEAR(mean_at_unequal_rates("mode: asynchronous", 1), 0.5, 0.08);
  EXPECT_NEAR(mean_at_unequal_rates("mode: asynchronous", 4), 0.2, 0.08);
}

TEST(AsyncGossip, CorrectsRates) {
  EXPECT_NEAR(mean_at_unequal_rates("mode: asynchronous, rate_correction: true", 1), 0.5, 0.08);
  EXPECT_NEAR(mean_at_unequal_rates("mode: asynchronous, rate_correction: true", 4), 0.5, 0.08);
}

TEST(AsyncGossip, SavesTheMass) {
  const Problem problem = async_problem(3, "rate_correction: true");
  run_ranks(3, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    for (int step = 0; step < 20; ++step) train_step(problem, model, world.rank, step);
    StateCopy state;
    model.pipeline().visit(state);
    const double mass = model.pipeline().model_weight();
    const std::vector<double> values = model.values();
    for (int step = 20; step < 25; ++step) train_step(problem, model, world.rank, step);
    state.load();
    model.pipeline().visit(state);
    EXPECT_EQ(model.pipeline().model_weight(), mass);
    EXPECT_EQ(model.values(), values);
    model.replan(64);
    EXPECT_EQ(model.pipeline().model_weight(), mass);
    EXPECT_EQ(model.values(), values);
    train_step(problem, model, world.rank, 20);
    model.pipeline().drain();
  });
}

TEST(AsyncGossip, LeavesOutABadStepOfOneRank) {
  Problem problem = async_problem(2);
  problem.gradients.nonfinite = NonFinite::kSkip;
  problem.breaks = [](int rank, int step) { return rank == 1 && step == 3; };
  run_ranks(2, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    for (int step = 0; step < 6; ++step) train_step(problem, model, world.rank, step);
    model.pipeline().drain();
    EXPECT_EQ(model.pipeline().progress().num_skipped, world.rank);
    for (const double value : model.values()) EXPECT_TRUE(std::isfinite(value));
  });
}

TEST(AsyncGossip, AveragesByMass) {
  run_ranks(2, [](Communicator& communicator, const World& world) {
    InlineStream stream;
    const Buffer memory = stream.allocate(1, DType::kFloat64);
    double& value = memory.block().as<double>()[0];
    value = world.rank == 0 ? 4.0 : 8.0;
    ModelAverage average(communicator, stream, {{.parameters = memory}},
                         world.rank == 0 ? 0.5 : 1.5);
    EXPECT_EQ(value, 7.0);
    EXPECT_EQ(average.distance(), world.rank == 0 ? 3.0 : 1.0);
    average.restore();
    EXPECT_EQ(value, world.rank == 0 ? 4.0 : 8.0);
  });
}

}  // namespace
}  // namespace gossamer
