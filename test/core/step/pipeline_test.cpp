// Tests the protocol of the pipeline: the calls that are allowed, and the state after each.

#include "core/step/pipeline.hpp"

#include "test/base/thrown.hpp"
#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/problem.hpp"
#include "test/core/test_topologies.hpp"
#include "test/support/sanitized.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

std::shared_ptr<const Topology> topology_of(std::string_view name, int n, int node_size = 0) {
  return make_topology(name, {.size = n, .node_size = node_size > 0 ? node_size : n});
}

Problem problem_of(std::string_view topology, int n) {
  return {.num_ranks = n, .topology = topology_of(topology, n)};
}

/// Gradient descent without momentum and decay at a learning rate of 1: x <- mixed x - gradient.
Problem plain_problem(std::string_view topology, int n) {
  Problem problem = problem_of(topology, n);
  problem.rule = {.type = "sgd"};
  problem.lr = 1.0;
  problem.weight_decay = 0.0;
  problem.sizes = {3, 2};
  problem.bucket_bytes = 1;
  return problem;
}

/// The same value for all elements.
std::vector<double> constant(const Problem& problem, double value) {
  return std::vector<double>(problem.num_values(), value);
}

TEST(Gossip, MixesAParameterWithoutAGradient) {
  run_ranks(2, [](Communicator& communicator, const World& world) {
    const Problem problem = plain_problem("complete", 2);
    ToyModel model = model_of(problem, communicator);
    model.write(constant(problem, world.rank));
    // First step: no exchange has taken place, and no rank has a gradient.
    model.pipeline().finish_step();
    EXPECT_EQ(model.values(), constant(problem, world.rank));
    // Second step: parameter 0 is mixed and updated, parameter 1 only mixed.
    model.offer(0, constant(problem, 1.0));
    model.pipeline().finish_step();
    const double updated = 0.5 - FixedSchedule(1.0).lr(1);
    EXPECT_EQ(model.values(), (std::vector<double>{updated, updated, updated, 0.5, 0.5}));
    model.pipeline().drain();
  });
}

TEST(Gossip, CountsUpdatesPerParameterAndRank) {
  // Adam's first update has the size of the learning rate, whatever the gradient. A parameter whose
  // first update comes late shows the same, if and only if that update counts as its first.
  run_ranks(2, [](Communicator& communicator, const World& world) {
    Problem problem = plain_problem("complete", 2);
    problem.rule = {.type = "adam"};
    ToyModel model = model_of(problem, communicator);
    model.write(constant(problem, 0.0));
    for (int step = 0; step < 5; ++step) {
      if (step == 4 && world.rank == 1) model.offer(1, constant(problem, 7.0));
      model.pipeline().finish_step();
    }
    const double lr = FixedSchedule(1.0).lr(4);
    const double expected = world.rank == 1 ? -lr : 0.0;
    for (const double x : read_block(model.parameter(1))) EXPECT_NEAR(x, expected, 1e-7);
    model.pipeline().drain();
  });
}

TEST(AllReduce, UpdatesEverywhereWhatSomeRanksUse) {
  run_ranks(4, [](Communicator& communicator, const World& world) {
    Problem problem = plain_problem("complete", 4);
    problem.algorithm = "allreduce";
    problem.weight_decay = 0.5;
    ToyModel model = model_of(problem, communicator);
    model.write(constant(problem, 1.0));
    if (world.rank == 2) model.offer(0, constant(problem, 8.0));
    model.pipeline().finish_step();
    // Parameter 0: mean gradient 2, decay 0.5. Parameter 1, used nowhere: no decay either.
    EXPECT_EQ(model.values(), (std::vector<double>{-1.5, -1.5, -1.5, 1.0, 1.0}));
  });
}

TEST(AllReduce, KeepsRanksBitIdentical) {
  for (const int n : {2, 3, 8}) {
    Problem problem = problem_of("complete", n);
    problem.algorithm = "allreduce";
    problem.dtype = DType::kFloat32;
    problem.same_start = true;
    problem.rule = {.type = "accum_adamw", .accum_iter = 2};
    problem.present = [](int rank, int step, std::int64_t parameter) {
      return (rank + step + parameter) % 3 != 0;
    };
    const Trajectory trajectory = run_pipeline(problem);
    for (const auto& ranks : trajectory) {
      for (const auto& values : ranks) EXPECT_EQ(values, ranks.front());
    }
    EXPECT_NE(trajectory.front(), trajectory.back());
  }
}

class EveryAlgorithmName : public testing::TestWithParam<std::string> {
 protected:
  static Problem problem(int n) {
    Problem problem = problem_of(topology_for(GetParam(), "complete"), n);
    problem.algorithm = GetParam();
    return problem;
  }
};
INSTANTIATE_TEST_SUITE_P(Algorithms, EveryAlgorithmName, testing::ValuesIn(algorithms_in_step()),
                         own_name);

TEST_P(EveryAlgorithmName, RefusesASecondGradientInOneStep) {
  run_ranks(1, [](Communicator& communicator, const World&) {
    Problem one_bucket = problem(1);
    one_bucket.bucket_bytes = 1 << 20;
    ToyModel waiting = model_of(one_bucket, communicator);
    waiting.offer(0, waiting.values());
    // The bucket still waits for other gradients, but this one must not be offered again.
    const auto again = [](ToyModel& model) {
      return what_of<std::logic_error>([&] { model.offer(0, model.values()); });
    };
    EXPECT_TRUE(contains(again(waiting), "parameter p0 got a second gradient in one step"));
    EXPECT_TRUE(contains(again(waiting), "set_accumulate_grad(true) before every backward"));

    Problem small_buckets = problem(1);
    small_buckets.bucket_bytes = 1;
    ToyModel updated = model_of(small_buckets, communicator);
    updated.offer(0, updated.values());
    EXPECT_TRUE(contains(again(updated), "second gradient")) << "after the bucket's update";
    updated.pipeline().finish_step();
    EXPECT_EQ(again(updated), "") << "in the next step";
  });
}

TEST_P(EveryAlgorithmName, RefusesGradientsThatDoNotFit) {
  run_ranks(1, [](Communicator& communicator, const World&) {
    ToyModel model = model_of(problem(1), communicator);
    std::vector<double> longer(8);
    std::vector<float> other_type(7);
    Pipeline& pipeline = model.pipeline();
    EXPECT_THROW(pipeline.gradient_ready(0, block_of(std::span(longer))), std::logic_error);
    EXPECT_THROW(pipeline.gradient_ready(0, block_of(std::span(other_type))), std::logic_error);
    EXPECT_THROW(pipeline.gradient_ready(0, {nullptr, 7, DType::kFloat64}), std::logic_error);
    EXPECT_THROW(pipeline.gradient_ready(6, {}), std::logic_error);
    EXPECT_THROW(pipeline.gradient_ready(-1, {}), std::logic_error);
  });
}

TEST_P(EveryAlgorithmName, TakesEmptyGradientsWithoutMemory) {
  run_ranks(2, [](Communicator& communicator, const World&) {
    Problem empty = problem(2);
    empty.sizes = {0, 4, 0};
    for (const std::int64_t limit : {0, 1, 1 << 20}) {
      empty.bucket_bytes = limit;
      ToyModel model = model_of(empty, communicator);
      for (int step = 0; step < 3; ++step) {
        model.pipeline().gradient_ready(0, {nullptr, 0, DType::kFloat64});
        EXPECT_THROW(model.pipeline().gradient_ready(0, {nullptr, 0, DType::kFloat64}),
                     std::logic_error);
        model.offer(1, model.values());
        if (step != 1) model.offer(2, model.values());
        model.pipeline().finish_step();
      }
      model.pipeline().drain();
    }
  });
}

TEST_P(EveryAlgorithmName, MayBeDroppedWithExchangesInFlight) {
  for (const int n : {2, 4}) {
    run_ranks(n, [n](Communicator& communicator, const World& world) {
      Problem problem = EveryAlgorithmName::problem(n);
      problem.bucket_bytes = 1;
      // The thread sanitizer watches every byte that a thread copies.
      problem.sizes = {kThreadSanitized ? 2'000 : 20'000, 7, kThreadSanitized ? 3'000 : 30'000};
      // The exchanges of the next model follow those that the last model has left behind.
      for (const int num_steps : {1, 2, 3}) {
        ToyModel model = model_of(problem, communicator);
        for (int step = 0; step < num_steps; ++step) {
          train_step(problem, model, world.rank, step);
        }
      }
    });
  }
}

TEST_P(EveryAlgorithmName, TellsTheLearningRateOfTheNextStep) {
  run_ranks(1, [](Communicator& communicator, const World&) {
    ToyModel model = model_of(problem(1), communicator);
    for (int step = 0; step < 4; ++step) {
      EXPECT_EQ(model.pipeline().progress().num_steps, step);
      EXPECT_EQ(model.pipeline().lr(), FixedSchedule(0.05).lr(step));
      train_step(problem(1), model, 0, step);
    }
  });
}

TEST_P(EveryAlgorithmName, ExchangesNothingAlone) {
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.needs_options) continue;
    const std::string name(entry.name);
    Problem problem = EveryAlgorithmName::problem(1);
    problem.topology = topology_of(name, 1);
    const AlgorithmChoice choice(GetParam());
    if (!choice.why_not({.topology = problem.topology.get()}).empty()) continue;
    run_ranks(1, [&](Communicator& communicator, const World&) {
      ToyModel model = model_of(problem, communicator);
      for (int step = 0; step < 3; ++step) train_step(problem, model, 0, step);
      EXPECT_EQ(model.pipeline().metrics().bytes_sent, 0.0) << name;
    });
  }
}

TEST(MakeAlgorithm, RefusesWhatCannotBe) {
  run_ranks(1, [](Communicator& communicator, const World&) {
    const auto refusal = [&](const Problem& problem) {
      return what_of<ConfigError>([&] { (void)model_of(problem, communicator); });
    };
    Problem problem = plain_problem("complete", 1);
    problem.algorithm = "gosip";
    const std::string what = refusal(problem);
    EXPECT_TRUE(contains(what, "gosip (did you mean gossip?)")) << what;
    problem.algorithm = "gossip";
    problem.topology = nullptr;
    EXPECT_TRUE(contains(refusal(problem), "gossip needs a topology"));
    problem.algorithm = "local";
    EXPECT_EQ(refusal(problem), "");
    Problem shares = plain_problem("complete", 1);
    shares.algorithm_options = "share_moments: 4";
    EXPECT_TRUE(contains(refusal(shares), "the optimizer keeps no second moments"));
    Pipeline::Config config = config_of(problem);
    config.optimizer = nullptr;
    EXPECT_THROW((void)model_of(problem, communicator, config), ConfigError);
    config = config_of(problem);
    config.schedule = nullptr;
    EXPECT_THROW((void)model_of(problem, communicator, config), ConfigError);
  });
}

/// Two parameters that train for nine steps, and what they are then. `tell` runs before every step.
std::vector<double> train_two(const Problem& problem,
                              const std::function<void(Pipeline& pipeline, int step)>& tell) {
  std::vector<double> end;
  run_ranks(problem.num_ranks, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    for (int step = 0; step < 9; ++step) {
      tell(model.pipeline(), step);
      train_step(problem, model, world.rank, step);
      if (step == 4) model.replan(problem.bucket_bytes == 1 ? 1 << 20 : 1);
    }
    model.pipeline().drain();
    if (world.rank == 1) end = model.values();
  });
  return end;
}

class EverySettings : public testing::TestWithParam<reference::Rule> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, EverySettings,
                         testing::Values(reference::Rule{.type = "sgd", .momentum = 0.9},
                                         reference::Rule{.type = "adam"},
                                         reference::Rule{.type = "adamw"},
                                         reference::Rule{.type = "accum_adam", .accum_iter = 3},
                                         reference::Rule{.type = "accum_adamw", .accum_iter = 3}),
                         [](const auto& test) { return test.param.type; });

TEST_P(EverySettings, OfAParameterAreThoseOfAPipelineOfItsOwn) {
  // Rates change at every step, as a schedule changes them, and stay when buckets change.
  const auto rate = [](std::size_t group, int step) {
    return group == 0 ? 0.1 / (1 + step) : 0.02;
  };
  for (const DType dtype : {DType::kFloat64, DType::kBFloat16}) {
    for (const std::int64_t bucket_bytes : {1, 1 << 20}) {
      Problem problem = problem_of("ring", 3);
      problem.rule = GetParam();
      problem.dtype = dtype;
      problem.sizes = {7, 5};
      problem.bucket_bytes = bucket_bytes;
      const std::array<double, 2> decays = {0.3, 0.0};
      const std::vector<double> both = train_two(problem, [&](Pipeline& pipeline, int step) {
        for (std::size_t group : {0, 1}) {
          pipeline.set_settings(static_cast<std::int64_t>(group),
                                {.lr = rate(group, step), .weight_decay = decays[group]});
        }
      });
      for (const std::size_t group : {0, 1}) {
        const std::vector<double> alone = train_two(problem, [&](Pipeline& pipeline, int step) {
          for (const std::int64_t parameter : {0, 1}) {
            pipeline.set_settings(parameter,
                                  {.lr = rate(group, step), .weight_decay = decays[group]});
          }
        });
        const auto first = static_cast<std::ptrdiff_t>(group == 0 ? 0 : 7);
        const auto last = static_cast<std::ptrdiff_t>(group == 0 ? 7 : 12);
        EXPECT_TRUE(std::equal(both.begin() + first, both.begin() + last, alone.begin() + first));
        EXPECT_NE(both, alone);
      }
    }
  }
}

TEST(Settings, ThatAreThoseOfTheConfigurationChangeNothing) {
  Problem problem = problem_of("ring", 3);
  problem.rule = {.type = "adamw"};
  problem.sizes = {7, 5};
  const std::shared_ptr<const Optimizer> same = make_optimizer("adamw");
  const FixedSchedule schedule(problem.lr);
  const std::vector<double> told = train_two(problem, [&](Pipeline& pipeline, int step) {
    for (const std::int64_t parameter : {0, 1}) {
      pipeline.set_settings(
          parameter,
          {.lr = schedule.lr(step), .weight_decay = problem.weight_decay, .optimizer = same});
    }
  });
  EXPECT_EQ(told, train_two(problem, [](Pipeline&, int) {}));
}

TEST(Settings, TakeOtherNumbersOfTheSameRule) {
  // Betas that change from step to step, as OneCycleLR changes them.
  Problem problem = problem_of("ring", 2);
  problem.rule = {.type = "adamw"};
  problem.sizes = {7, 5};
  const auto with_betas = [](double beta1) {
    return std::shared_ptr<const Optimizer>(
        make_optimizer("adamw", Options::parse(concat("betas: [", beta1, ", 0.9]"))));
  };
  const auto own = [&](Pipeline& pipeline, int step) {
    pipeline.set_settings(1, {.lr = 0.1, .optimizer = with_betas(step < 3 ? 0.8 : 0.3)});
  };
  problem.num_ranks = 2;
  const std::vector<double> actual = train_two(problem, own);
  const std::vector<double> others = train_two(problem, [](Pipeline&, int) {});
  EXPECT_TRUE(std::equal(actual.begin(), actual.begin() + 7, others.begin()));
  EXPECT_NE(actual, others);
  // A constant beta gives the same as a pipeline with it.
  const std::vector<double> constant = train_two(problem, [&](Pipeline& pipeline, int) {
    pipeline.set_settings(1, {.lr = 0.1, .optimizer = with_betas(0.8)});
  });
  EXPECT_NE(actual, constant);
}

TEST(Settings, RefuseAnotherRule) {
  run_ranks(2, [](Communicator& communicator, const World&) {
    Problem problem = plain_problem("complete", 2);
    ToyModel model = model_of(problem, communicator);
    EXPECT_TRUE(contains(what_of<std::logic_error>([&] {
                           model.pipeline().set_settings(1, {.optimizer = make_optimizer("adamw")});
                         }),
                         "the optimizer for p1 has another rule"));
    EXPECT_THROW(model.pipeline().set_settings(2, {}), std::out_of_range);
    model.pipeline().drain();
  });
}

TEST(Pipeline, RefusesMemoryThatDoesNotFitThePlan) {
  run_ranks(1, [](Communicator& communicator, const World&) {
    const Problem problem = plain_problem("complete", 1);
    const auto infos = parameters_of_sizes(problem.sizes, DType::kFloat32);
    const BucketPlan plan = plan_buckets(infos, declared_order(infos.size()), 1);
    const auto build = [&](std::vector<ParameterMemory> memory) {
      const Pipeline pipeline(communicator, config_of(problem), infos, plan, std::move(memory));
    };
    InlineStream stream;
    EXPECT_NO_THROW(build(memory_of(plan, stream)));
    EXPECT_THROW(build({}), std::logic_error);
    const Buffer floats(32, DType::kFloat32);
    EXPECT_THROW(build({{floats}, {Buffer(31, DType::kFloat32)}}), std::logic_error);
    EXPECT_THROW(build({{floats}, {Buffer(32, DType::kFloat64)}}), std::logic_error);
    const Buffer halves(32, DType::kBFloat16);
    EXPECT_THROW(build({{floats, halves}, {floats, halves}}), std::logic_error);
  });
}

}  // namespace
}  // namespace gossamer
