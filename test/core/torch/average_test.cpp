// Tests global_average() and the lifetime of the wrapper.

#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/torch/scenario.hpp"

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/text.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/bucket/model_average.hpp"
#include "core/torch/data_parallel.hpp"

namespace gossamer {
namespace {

using Wrapper = DecentralizedDataParallel<Bag>;

/// The parameters of a model as one vector.
torch::Tensor flat(const Bag& model) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& parameter : model.parameters()) {
    parts.push_back(parameter.detach().flatten());
  }
  return torch::cat(parts);
}

/// Collective: the sum over ranks of a float64 tensor.
torch::Tensor sum_of(Communicator& communicator, const torch::Tensor& tensor) {
  const double* data = tensor.data_ptr<double>();
  return torch::tensor(sum_over_ranks(communicator, {data, data + tensor.numel()}),
                       torch::kFloat64);
}

/// Every rank has its own float64 model, trained for `steps` steps.
std::unique_ptr<Wrapper> make_wrapper(Communicator& communicator, Scenario scenario, int steps) {
  scenario.num_ranks = communicator.size();
  auto model = std::make_unique<Wrapper>(scenario.make_model(communicator.rank()), communicator,
                                         scenario.options());
  for (int step = 0; step < steps; ++step) make_step(*model, scenario, communicator.rank(), step);
  return model;
}

TEST(GlobalAverage, IsTheMeanOfAllRanksAndGivesTheLocalModelBack) {
  for (const Scenario& scenario : with_every_algorithm({})) {
    for (const int num_ranks : {1, 2, 3, 4}) {
      for (const int steps : {0, 1, 5}) {
        SCOPED_TRACE(concat(scenario.algorithm, ", ", num_ranks, " ranks, after step ", steps));
        on_ranks(num_ranks, [&](Communicator& communicator) {
          const auto model = make_wrapper(communicator, scenario, steps);
          model->drain();
          const Values own = copy_values(model->module());
          const torch::Tensor x = flat(model->module());
          const torch::Tensor mean = sum_of(communicator, x) / num_ranks;
          {
            const AverageScope scope = model->global_average();
            expect_near(flat(model->module()), mean);
            EXPECT_NEAR(scope.consensus_distance(), (mean - x).norm().item<double>(), 1e-12);
            if (scenario.algorithm == "gossip" && num_ranks > 2 && steps > 0) {
              EXPECT_GT(scope.consensus_distance(), 1e-3);
            }
          }
          expect_equal(copy_values(model->module()), own);
        });
      }
    }
  }
}

TEST(GlobalAverage, KeepsTheMeanOnRequestAndMixesNothingInTheNextStep) {
  for (const int steps : {0, 1, 4}) {
    SCOPED_TRACE(concat("after step ", steps));
    on_ranks(3, [&](Communicator& communicator) {
      const Scenario scenario{.num_ranks = 3};
      const int rank = communicator.rank();
      const auto model = make_wrapper(communicator, scenario, steps);
      model->drain();
      const torch::Tensor mean = sum_of(communicator, flat(model->module())) / 3;
      {
        AverageScope scope = model->global_average();
        scope.keep();
        scope.keep();
      }
      expect_near(flat(model->module()), mean);
      const torch::Tensor kept = flat(model->module());
      const std::string bytes(static_cast<const char*>(kept.data_ptr()), kept.nbytes());
      EXPECT_EQ(communicator.all_gather(bytes)[0], bytes);
      // Plain gradient descent from the mean.
      std::vector<torch::Tensor> grads =
          torch::autograd::grad({mlp_loss(model->module(), rank, 50)}, model->parameters());
      for (torch::Tensor& grad : grads) grad = grad.flatten();
      const torch::Tensor expected = kept - scenario.lr * torch::cat(grads);
      make_step(*model, scenario, rank, 50);
      expect_near(flat(model->module()), expected);
    });
  }
}

TEST(GlobalAverage, RefusesToTrainInsideItsScope) {
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario;
    for (const int steps : {0, 2}) {
      const auto model = make_wrapper(communicator, scenario, steps);
      const Values own = copy_values(model->module());
      {
        const AverageScope scope = model->global_average();
        EXPECT_THROW(make_step(*model, scenario, communicator.rank(), 7), std::logic_error);
        EXPECT_THROW(model->finish_step(), std::logic_error);
        EXPECT_THROW(static_cast<void>(model->global_average()), std::logic_error);
      }
      expect_equal(copy_values(model->module()), own);
      EXPECT_EQ(model->engine().progress().num_steps, steps);
      static_cast<void>(model->global_average());
    }
  });
}

TEST(GlobalAverage, MakesGraphsOfTheMeanModelStale) {
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario;
    const auto model = make_wrapper(communicator, scenario, 3);
    torch::Tensor inside;
    {
      const AverageScope scope = model->global_average();
      inside = mlp_loss(model->module(), communicator.rank(), 3);
    }
    EXPECT_ANY_THROW(inside.backward());
    EXPECT_EQ(model->engine().progress().num_steps, 3);
  });
}

TEST(GlobalAverage, AveragesFloatBuffersWhenAsked) {
  on_ranks(2, [](Communicator& communicator) {
    const int rank = communicator.rank();
    const Scenario scenario;
    auto bag = make_mlp(0);
    bag->add_buffer("mean", wave({3}, 0));
    bag->add_buffer("single", wave({3}, 0, torch::kFloat32));
    bag->add_buffer("count", torch::zeros({1}, torch::kInt64));
    Wrapper model(bag, communicator, scenario.options());
    for (const char* const name : {"mean", "single", "count"}) (*bag)[name].add_(1 + 2 * rank);
    const auto expect_shift = [&](double shift, std::int64_t count) {
      EXPECT_TRUE(torch::allclose((*bag)["mean"], wave({3}, 0) + shift));
      EXPECT_TRUE(torch::allclose((*bag)["single"], wave({3}, 0, torch::kFloat32) + shift));
      EXPECT_EQ((*bag)["count"].item<std::int64_t>(), count);
    };
    {
      const AverageScope scope = model.global_average(false);
      expect_shift(1 + 2 * rank, 1 + 2 * rank);
    }
    {
      const AverageScope scope = model.global_average();
      expect_shift(2, 1 + 2 * rank);
      // The distance compares parameters only, and they are equal here.
      EXPECT_LT(scope.consensus_distance(), 1e-14);
    }
    expect_shift(1 + 2 * rank, 1 + 2 * rank);
    model.global_average().keep();
    expect_shift(2, 1 + 2 * rank);
  });
}

TEST(GlobalAverage, NeverTouchesFrozenParameters) {
  // The mean of seven equal numbers, computed in float32, is not always that number.
  on_ranks(7, [](Communicator& communicator) {
    auto bag = make_mlp(0, torch::kFloat32);
    bag->add("frozen", wave({1000}, 0, torch::kFloat32), false);
    Wrapper model(bag, communicator, Scenario{.num_ranks = 7}.options());
    model.global_average().keep();
    EXPECT_TRUE(torch::equal((*bag)["frozen"], wave({1000}, 0, torch::kFloat32)));
  });
}

TEST(AverageScope, MayBeMoved) {
  on_ranks(2, [](Communicator& communicator) {
    const auto model = make_wrapper(communicator, {}, 3);
    model->drain();
    const Values own = copy_values(model->module());
    std::optional<AverageScope> held;
    {
      AverageScope scope = model->global_average();
      held.emplace(std::move(scope));
      scope.keep();  // moved from: nothing happens  NOLINT(bugprone-use-after-move)
    }
    const torch::Tensor x = flat(model->module());
    EXPECT_TRUE(torch::allclose(sum_of(communicator, x), 2 * x));
    EXPECT_THROW(static_cast<void>(model->global_average()), std::logic_error);
    held.reset();
    expect_equal(copy_values(model->module()), own);
  });
}

TEST(AverageScope, MayOutliveTheWrapper) {
  on_ranks(2, [](Communicator& communicator) {
    auto model = make_wrapper(communicator, {}, 3);
    model->drain();
    auto& bag = dynamic_cast<Bag&>(*model->module().shared_from_this());
    const auto keep_alive = bag.shared_from_this();
    const Values own = copy_values(bag);
    {
      const AverageScope scope = model->global_average();
      model.reset();
    }
    expect_equal(copy_values(bag), own);
  });
}

TEST(Wrapper, MayGoWhileAnExchangeIsInFlight) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<std::shared_ptr<Bag>> models(3);
    on_ranks(3, [&](Communicator& communicator) {
      const Scenario scenario{.num_ranks = 3, .topology = "complete"};
      const int rank = communicator.rank();
      auto bag = make_mlp(0);
      models[static_cast<std::size_t>(rank)] = bag;
      {
        Wrapper model(bag, communicator, scenario.options());
        for (int step = 0; step < 2; ++step) make_step(model, scenario, rank, step);
      }
      // The model is an ordinary one again: gradients stay, and nothing is updated.
      const Values before = copy_values(*bag);
      mlp_loss(*bag, rank, 2).backward();
      mlp_loss(*bag, rank, 3).backward();
      for (const torch::Tensor& p : bag->parameters()) EXPECT_TRUE(p.grad().defined());
      expect_equal(copy_values(*bag), before);
    });
    for (const auto& bag : models) {
      mlp_loss(*bag, 0, 0).backward();
      for (const torch::Tensor& p : bag->parameters()) EXPECT_TRUE(p.isfinite().all().item<bool>());
    }
  }
}

TEST(Wrapper, MayFollowAnotherOnTheSameModel) {
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario;
    auto bag = make_mlp(0);
    for (int life = 0; life < 2; ++life) {
      Wrapper model(bag, communicator, scenario.options());
      const Values before = copy_values(*bag);
      make_step(model, scenario, communicator.rank(), life);
      EXPECT_EQ(model.engine().progress().num_steps, 1);
      EXPECT_FALSE(torch::equal((*bag)["w1"], before.at("w1")));
      model.drain();
    }
  });
}

TEST(Wrapper, PassesCallsOnToTheModule) {
  on_ranks(1, [](Communicator& communicator) {
    const auto model = make_wrapper(communicator, {}, 0);
    model->eval();
    EXPECT_FALSE(model->module().is_training());
    model->train();
    EXPECT_TRUE(model->module().is_training());
    EXPECT_EQ(model->parameters().size(), 4U);
    const torch::Tensor x = wave({2, 3}, 0);
    EXPECT_TRUE(torch::equal(model->forward(x), model->module().forward(x)));
  });
}

}  // namespace
}  // namespace gossamer
