// Tests training with DecentralizedDataParallel against training by hand, and the protocol of a
// step.

#include "core/torch/data_parallel.hpp"

#include "test/core/torch/scenario.hpp"
#include "test/support/sanitized.hpp"

#include <memory>
#include <set>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

TEST(GossipTrajectory, IsThatOfTheOptimizerAndItsOptions) {
  for (const char* const topology : {"ring", "complete"}) {
    Scenario scenario{.num_ranks = 3, .topology = topology, .weight_decay = 0.05};
    expect_as_by_hand(scenario);
    scenario.momentum = 0.8;
    expect_as_by_hand(scenario);
    scenario.nesterov = true;
    expect_as_by_hand(scenario);
    scenario.decay_bias_and_norm = true;
    expect_as_by_hand(scenario);
    scenario.optimizer = "adamw";
    scenario.num_steps = 12;
    expect_as_by_hand(scenario);
  }
}

TEST(Trajectory, IsThatOfGroupsOfParametersUnderEveryAlgorithm) {
  // A parameter is in the first group that fits.
  const Scenario scenario{.num_ranks = 3,
                          .momentum = 0.5,
                          .weight_decay = 0.05,
                          .groups = {{.match = "1", .lr_factor = 0.25},
                                     {.match = "b", .weight_decay = 0.3, .momentum = 0.9},
                                     {.match = "2", .lr_factor = 2.0, .weight_decay = 0.0}}};
  for (Scenario each : with_every_algorithm(scenario)) {
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1} << 30U}) {
      each.bucket_bytes = bytes;
      expect_as_by_hand(each);
    }
  }
}

TEST(Step, MakesStaleGraphsAnError) {
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario;
    const int rank = communicator.rank();
    DecentralizedDataParallel<Bag> model(make_mlp(0), communicator, scenario.options());
    for (int step = 0; step < 2; ++step) {
      SCOPED_TRACE(step == 0 ? "the step that moves the parameters" : "a later step");
      const torch::Tensor earlier = mlp_loss(model.module(), rank, step);
      torch::Tensor same = mlp_loss(model.module(), rank, step);
      same.backward({}, /*retain_graph=*/true);
      for (const torch::Tensor& loss : {earlier, same}) {
        try {
          loss.backward({}, /*retain_graph=*/true);
          ADD_FAILURE() << "a graph that needs the old parameters was walked";
        } catch (const std::exception& error) {
          EXPECT_NE(std::string(error.what()).find("modified by an inplace operation"),
                    std::string::npos)
              << error.what();
        }
      }
    }
    EXPECT_EQ(model.engine().progress().num_steps, 2);
  });
}

TEST(Step, OfABackwardThatFailedIsNotForgottenInSilence) {
  // This graph breaks half way, as a second backward through freed buffers does.
  on_ranks(1, [](Communicator& communicator) {
    Scenario scenario;
    scenario.num_ranks = 1;
    for (const bool first_step : {true, false}) {
      SCOPED_TRACE(first_step ? "in the first step" : "later");
      DecentralizedDataParallel<Bag> model(make_mlp(0), communicator, scenario.options());
      Bag& bag = model.module();
      if (!first_step) make_step(model, scenario, 0, 0);
      const torch::Tensor product = bag["w1"] * bag["w1"];
      torch::autograd::grad({product.sum()}, {bag["w1"]});  // frees what `product` has saved
      // b2 is reached first, then the broken product.
      EXPECT_ANY_THROW((product.sum() + 2 * bag["b2"].sum()).backward());
      EXPECT_THROW(make_step(model, scenario, 0, 1), std::logic_error);
    }
  });
}

TEST(AccumulateGrad, SumsTheMicroBatches) {
  for (Scenario scenario : with_every_algorithm({.num_ranks = 3, .num_steps = 4})) {
    for (const int count : {2, 3}) {
      scenario.num_micro_batches = count;
      expect_as_by_hand(scenario);
    }
  }
}

TEST(AccumulateGrad, LeavesTheParametersAloneUntilTheLast) {
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario;
    DecentralizedDataParallel<Bag> model(make_mlp(0), communicator, scenario.options());
    for (int step = 0; step < 2; ++step) {
      const Values before = copy_values(model.module());
      model.set_accumulate_grad(true);
      mlp_loss(model.module(), communicator.rank(), 0).backward();
      expect_equal(copy_values(model.module()), before);
      EXPECT_EQ(model.engine().progress().num_steps, step);
      for (const torch::Tensor& p : model.parameters()) EXPECT_TRUE(p.grad().defined());
      model.set_accumulate_grad(false);
      mlp_loss(model.module(), communicator.rank(), 1).backward();
      EXPECT_EQ(model.engine().progress().num_steps, step + 1);
    }
  });
}

TEST(Plan, FollowsTheGradientsAndClosesAtTheLimit) {
  on_ranks(2, [](Communicator& communicator) {
    Scenario scenario;
    scenario.bucket_bytes = 256;
    DecentralizedDataParallel<Bag> model(make_mlp(0), communicator, scenario.options());
    EXPECT_TRUE(model.engine().plan().buckets.empty());
    make_step(model, scenario, communicator.rank(), 0);
    const BucketPlan& plan = model.engine().plan();
    ASSERT_EQ(plan.buckets.size(), 2U);
    std::vector<std::vector<std::string>> names;
    for (const BucketSpec& bucket : plan.buckets) {
      auto& group = names.emplace_back();
      EXPECT_EQ(bucket.dtype, DType::kFloat64);
      for (const BucketEntry& entry : bucket.entries) {
        group.push_back(
            model.engine().parameters()[static_cast<std::size_t>(entry.parameter)].name);
        EXPECT_EQ(entry.offset * 8 % 128, 0);
      }
      std::ranges::sort(group);
    }
    EXPECT_EQ(names, (std::vector<std::vector<std::string>>{{"b2", "w2"}, {"b1", "w1"}}));
    EXPECT_EQ(plan.bytes(), 512);
  });
}

/// A model of four parameters of 1.2 MB each, which the tried sizes cut into 1, 2 and 4 buckets.
Scenario scenario_with_large_parameters() {
  Scenario scenario{.optimizer = "adamw", .lr = 0.01, .num_steps = 64};
  scenario.make_model = [](int rank) {
    auto bag = std::make_shared<Bag>();
    for (const char* const name : {"a", "b", "c", "d"}) {
      bag->add(name, wave({300'000}, rank, torch::kFloat32));
    }
    return bag;
  };
  scenario.loss = [](Bag& bag, int rank, int step) {
    const torch::Tensor target = wave({300'000}, 0.3 * rank + step, torch::kFloat32);
    torch::Tensor loss = torch::zeros({});
    for (const torch::Tensor& p : bag.parameters()) loss = loss + (p - target).square().mean();
    return loss;
  };
  return scenario;
}

TEST(TriedBuckets, AreNoneWhereAllSizesCutTheSame) {
  on_ranks(2, [](Communicator& communicator) {
    Scenario scenario;
    scenario.bucket_bytes = 0;
    DecentralizedDataParallel<Bag> model(make_mlp(0), communicator, scenario.options());
    make_step(model, scenario, communicator.rank(), 0);
    EXPECT_FALSE(model.engine().tries_buckets());
    EXPECT_EQ(model.engine().plan().buckets.size(), 1U);
    model.drain();
  });
}

TEST(Replan, CutsOtherBucketsAfterTheFirstStep) {
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario;
    DecentralizedDataParallel<Bag> model(make_mlp(0), communicator, scenario.options());
    EXPECT_THROW(model.replan(1), std::logic_error);
    make_step(model, scenario, communicator.rank(), 0);
    model.replan(std::int64_t{1} << 30U);
    EXPECT_EQ(model.engine().plan().buckets.size(), 1U);
    model.replan(256);
    EXPECT_EQ(model.engine().plan().buckets.size(), 2U);
    EXPECT_THROW(model.replan(0), std::logic_error);
    model.drain();
  });
}

AlgorithmSwitch switch_to(const Scenario& scenario) {
  const DataParallelOptions options = scenario.options();
  return {.algorithm = options.exchange.algorithm, .topology = options.exchange.topology};
}

TEST(SwitchTo, AveragesBuffersWithTheModel) {
  on_ranks(2, [](Communicator& communicator) {
    const int rank = communicator.rank();
    const Scenario scenario;
    auto bag = make_mlp(rank);
    const torch::Tensor buffer = bag->add_buffer("mean", wave({3}, 0.0));
    DecentralizedDataParallel<Bag> model(bag, communicator, scenario.options());
    make_step(model, scenario, rank, 0);
    buffer.fill_(rank);
    const std::int64_t version = (*bag)["w1"]._version();
    AlgorithmSwitch to = switch_to(scenario);
    model.switch_to(to);
    EXPECT_EQ(buffer[0].item<double>(), rank);
    EXPECT_GT(model.global_average().consensus_distance(), 1e-6);
    to.average = true;
    model.switch_to(to);
    EXPECT_EQ(buffer[0].item<double>(), 0.5);
    EXPECT_LT(model.global_average().consensus_distance(), 1e-15);
    EXPECT_GT((*bag)["w1"]._version(), version);
    for (int step = 1; step < 3; ++step) make_step(model, scenario, rank, step);
    model.drain();
  });
}

TEST(SwitchTo, IsRefusedInsideAStepAndWhereRanksDiffer) {
  const std::vector<std::string> texts = config_errors(2, [](Communicator& communicator) {
    const int rank = communicator.rank();
    const Scenario scenario;
    DecentralizedDataParallel<Bag> model(make_mlp(rank), communicator, scenario.options());
    const AlgorithmSwitch to = switch_to(scenario);
    model.set_accumulate_grad(true);
    mlp_loss(model.module(), rank, 0).backward();
    EXPECT_THROW(model.switch_to(to), std::logic_error);
    model.set_accumulate_grad(false);
    mlp_loss(model.module(), rank, 0).backward();
    {
      const AverageScope scope = model.global_average();
      EXPECT_THROW(model.switch_to(to), std::logic_error);
    }
    model.switch_to(rank == 0 ? AlgorithmSwitch{.algorithm = "allreduce"} : to);
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("the ranks differ in what they switch to"), std::string::npos) << text;
  }
}

TEST(SwitchTo, BeginsTrialsOfBucketsAgain) {
  Scenario scenario = scenario_with_large_parameters();
  scenario.bucket_bytes = 0;
  on_ranks(2, [&](Communicator& communicator) {
    DecentralizedDataParallel<Bag> model(scenario.make_model(0), communicator, scenario.options());
    int step = 0;
    while (step == 0 || model.engine().plan().buckets.size() == 1) {
      make_step(model, scenario, communicator.rank(), step++);
    }
    model.switch_to({.algorithm = "allreduce"});
    EXPECT_EQ(model.engine().plan().buckets.size(), 1U) << "the first size";
    EXPECT_TRUE(model.engine().tries_buckets());
    make_step(model, scenario, communicator.rank(), step);
    EXPECT_EQ(model.engine().plan().buckets.size(), 1U);
    model.drain();
  });
}

TEST(DryRun, PlansAndChangesNothing) {
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario;
    DataParallelOptions options = scenario.options();
    options.dry_run = true;
    DecentralizedDataParallel<Bag> model(make_mlp(communicator.rank()), communicator, options);
    const Values before = copy_values(model.module());
    expect_equal(before, copy_values(*make_mlp(0)));
    make_step(model, scenario, communicator.rank(), 0);
    make_step(model, scenario, communicator.rank(), 1);
    expect_equal(copy_values(model.module()), before);
    for (const torch::Tensor& p : model.parameters()) EXPECT_FALSE(p.grad().defined());
    EXPECT_EQ(model.engine().plan().buckets.size(), 4U);
    EXPECT_EQ(model.engine().progress().num_steps, 0);
    EXPECT_EQ(model.engine().metrics().bytes_sent, 0.0);
    model.drain();
  });
}

}  // namespace
}  // namespace gossamer
