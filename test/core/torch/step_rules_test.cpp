// What docs/guide/ddp.md says about steps: micro-batches, buffers, frozen parameters, other
// modules, and ranks with different numbers of batches.

#include "test/core/torch/scenario.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/bucket/model_average.hpp"
#include "core/torch/data_parallel.hpp"

namespace gossamer {
namespace {

using Wrapper = DecentralizedDataParallel<Bag>;

TEST(MicroBatches, AreAveragedOnRequest) {
  for (Scenario scenario : with_every_algorithm({.num_ranks = 3, .num_steps = 4})) {
    for (const int count : {1, 3}) {
      scenario.num_micro_batches = count;
      scenario.mean_over_micro_batches = false;
      // The first micro-batch alone uses w2 and b2; they are divided by the same number.
      scenario.loss = [count](Bag& model, int rank, int batch) {
        const torch::Tensor hidden =
            torch::linear(wave({4, 3}, rank + batch), model["w1"], model["b1"]);
        return batch % count == 0 ? torch::linear(hidden, model["w2"], model["b2"]).square().mean()
                                  : hidden.square().mean();
      };
      SCOPED_TRACE(concat(scenario.text(), ", ", count, " micro-batches"));
      Scenario by_hand = scenario;
      by_hand.loss = [loss = scenario.loss, count](Bag& model, int rank, int batch) {
        return loss(model, rank, batch) / count;
      };
      scenario.mean_over_micro_batches = true;
      expect_near(train_on_ranks(scenario), train_by_hand(by_hand), kTolerance);
    }
  }
}

TEST(MicroBatches, MayDifferInNumberBetweenRanks) {
  // Rank r has r + 1 micro-batches, all alike: their mean is one of them.
  Scenario scenario{.num_ranks = 3, .algorithm = "allreduce", .num_steps = 4};
  Trajectory trajectory(4, std::vector<Values>(3));
  on_ranks(3, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    DataParallelOptions options = scenario.options();
    options.mean_over_micro_batches = true;
    Wrapper model(make_mlp(0), communicator, options);
    for (int step = 0; step < 4; ++step) {
      for (int micro = 0; micro <= rank; ++micro) {
        model.set_accumulate_grad(micro < rank);
        mlp_loss(model.module(), rank, step).backward();
      }
      trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)] =
          copy_values(model.module());
    }
  });
  expect_near(trajectory, train_by_hand(scenario), kTolerance);
}

TEST(Buffers, AreAveragedEverySoManySteps) {
  on_ranks(3, [](Communicator& communicator) {
    const Scenario scenario{.num_ranks = 3};
    DataParallelOptions options = scenario.options();
    options.average_buffers_every = 2;
    const auto bag = make_mlp(0);
    torch::Tensor mean = bag->add_buffer("running_mean", torch::zeros({2}, torch::kFloat64));
    torch::Tensor count = bag->add_buffer("num_batches", torch::zeros({}, torch::kInt64));
    Wrapper model(bag, communicator, options);
    const int rank = communicator.rank();
    // Rank r adds r before every step; the mean of the ranks is 1.
    const std::vector<double> expected = {1.0 * rank, 2.0, 2.0 + rank, 4.0};
    for (int step = 0; step < 4; ++step) {
      mean.add_(rank);
      count.add_(rank);
      if (step == 2 && rank == 0) {
        model.finish_step();
      } else {
        make_step(model, scenario, rank, step);
      }
      const auto value = expected[static_cast<std::size_t>(step)];
      EXPECT_TRUE(torch::allclose(mean, torch::full({2}, value, torch::kFloat64))) << mean;
      EXPECT_EQ(count.item<std::int64_t>(), (step + 1) * rank);
    }
    model.drain();
  });
}

TEST(UnfrozenParameters, AreNamedOnceAndLeftAlone) {
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario;
    DataParallelOptions options = scenario.options();
    const bool speaks = communicator.rank() == 0;
    if (speaks) options.logger = Logger(LogLevel::kWarning, "rank 0");
    auto bag = make_mlp(0);
    bag->add("frozen", wave({3}, 0), false);
    Wrapper model(bag, communicator, options);
    if (speaks) testing::internal::CaptureStderr();
    for (int step = 0; step < 3; ++step) {
      if (step == 1) (*bag)["frozen"].set_requires_grad(true);
      (mlp_loss(*bag, communicator.rank(), step) + (*bag)["frozen"].sum()).backward();
      communicator.barrier();
    }
    model.drain();
    EXPECT_TRUE(torch::equal((*bag)["frozen"].detach(), wave({3}, 0)));
    if (!speaks) return;
    const std::string said = testing::internal::GetCapturedStderr();
    const std::size_t first = said.find("require gradients now");
    EXPECT_NE(first, std::string::npos) << said;
    EXPECT_NE(said.find("frozen; they are neither updated nor mixed"), std::string::npos) << said;
    EXPECT_EQ(said.find("require gradients now", first + 1), std::string::npos) << said;
  });
}

struct TwoLayers : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 5));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(5, 2));
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::tanh(first(x))); }
};

TEST(ReplacedLayers, AreNamedOnceAndLeftAlone) {
  for (const int steps : {0, 2}) {
    on_ranks(2, [&](Communicator& communicator) {
      DataParallelOptions options = Scenario().options();
      const bool speaks = communicator.rank() == 0;
      if (speaks) options.logger = Logger(LogLevel::kWarning, "rank 0");
      const auto net = std::make_shared<TwoLayers>();
      DecentralizedDataParallel<TwoLayers> model(net, communicator, options);
      const auto step = [&] {
        model.forward(wave({4, 3}, 1, torch::kFloat32)).square().sum().backward();
      };
      for (int number = 0; number < steps; ++number) step();
      if (speaks) testing::internal::CaptureStderr();
      net->second = net->replace_module("second", torch::nn::Linear(5, 2));
      const torch::Tensor before = net->second->weight.detach().clone();
      for (int number = 0; number < 2; ++number) step();
      communicator.barrier();
      EXPECT_TRUE(torch::equal(net->second->weight, before));
      EXPECT_EQ(model.engine().progress().num_steps, steps + 2);
      model.drain();
      if (!speaks) return;
      const std::string said = testing::internal::GetCapturedStderr();
      const std::size_t first = said.find("second.weight, second.bias; they are neither updated");
      EXPECT_NE(first, std::string::npos) << said;
      EXPECT_EQ(said.find("neither updated", first + 50), std::string::npos) << said;
    });
  }
}

TEST(FrozenLater, ParametersAreMixedAndNotUpdated) {
  Scenario scenario{.num_ranks = 3, .optimizer = "adamw", .num_steps = 6};
  scenario.loss = [](Bag& model, int rank, int step) {
    model["w1"].set_requires_grad(step < 2 || step == 5);
    return mlp_loss(model, rank, step);
  };
  const Trajectory frozen = train_on_ranks(scenario);
  // By hand: a loss that sees the values of w1 alone.
  scenario.loss = [](Bag& model, int rank, int step) {
    const bool used = step < 2 || step == 5;
    const double phase = 10.0 * rank + step;
    const torch::Tensor w1 = used ? model["w1"] : model["w1"].detach();
    const torch::Tensor hidden = torch::tanh(torch::linear(wave({4, 3}, phase), w1, model["b1"]));
    return (torch::linear(hidden, model["w2"], model["b2"]) - wave({4, 2}, 2 * phase))
        .square()
        .mean();
  };
  expect_near(frozen, train_by_hand(scenario), kTolerance);
}

TEST(AnotherModulesBackward, ThatReachesTheModelMakesAStepUnlessItIsToldNotTo) {
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario;
    Wrapper model(make_mlp(0), communicator, scenario.options());
    make_step(model, scenario, communicator.rank(), 0);
    torch::Tensor other = wave({4, 3}, 1).requires_grad_();
    const auto loss = [&] { return model.forward(other).square().sum(); };
    const Values before = copy_values(model.module());

    loss().backward({}, false, false, std::vector<torch::Tensor>{other});
    expect_equal(copy_values(model.module()), before);
    for (torch::Tensor& p : model.parameters()) p.requires_grad_(false);
    loss().backward();
    for (torch::Tensor& p : model.parameters()) {
      EXPECT_FALSE(p.grad().defined());
      p.requires_grad_(true);
    }
    expect_equal(copy_values(model.module()), before);
    EXPECT_EQ(model.engine().progress().num_steps, 1);

    loss().backward();
    EXPECT_EQ(model.engine().progress().num_steps, 2);
    EXPECT_FALSE(torch::equal(model.module()["w1"], before.at("w1")));
    model.drain();
  });
}

TEST(UnequalBatches, AreMadeUpForByStepsWithoutOne) {
  // Rank r has 2 + r batches. By hand that is a loss without parameters.
  const auto has_batch = [](int rank, int step) { return step < 2 + rank; };
  Scenario scenario{.num_ranks = 3, .optimizer = "adamw", .num_steps = 4};
  Trajectory trajectory(4, std::vector<Values>(3));
  on_ranks(3, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    Wrapper model(make_mlp(0), communicator, scenario.options());
    const std::vector<double> counts = gather_numbers(communicator, 2 + rank);
    const double num_steps = *std::ranges::max_element(counts);
    for (int step = 0; step < num_steps; ++step) {
      if (has_batch(rank, step)) {
        mlp_loss(model.module(), rank, step).backward();
      } else {
        model.finish_step();
      }
      trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)] =
          copy_values(model.module());
    }
  });
  scenario.loss = [&](Bag& model, int rank, int step) {
    return has_batch(rank, step) ? mlp_loss(model, rank, step)
                                 : torch::ones({}, torch::requires_grad());
  };
  expect_near(trajectory, train_by_hand(scenario), kTolerance);
}

}  // namespace
}  // namespace gossamer
