// Tests gradients that are scaled, clipped, not finite, detached, or that come from a retained
// graph.

#include "test/core/torch/scenario.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "comm/backends.hpp"
#include "core/torch/data_parallel.hpp"

namespace gossamer {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Values values_after(Scenario scenario, const DataParallelOptions& extra,
                    const std::function<void(DecentralizedDataParallel<Bag>&, int step)>& step) {
  Values result;
  on_ranks(scenario.num_ranks, [&](Communicator& communicator) {
    DataParallelOptions options = scenario.options();
    options.gradients = extra.gradients;
    DecentralizedDataParallel<Bag> model(scenario.make_model(communicator.rank()), communicator,
                                         options);
    for (int k = 0; k < scenario.num_steps; ++k) step(model, k);
    model.drain();
    if (communicator.rank() == 0) result = copy_values(model.module());
  });
  return result;
}

TEST(GradientScale, UndoesTheScaleOfTheLoss) {
  const Scenario scenario{.num_ranks = 1};
  const auto plain = values_after(
      scenario, {}, [](auto& model, int step) { mlp_loss(model.module(), 0, step).backward(); });
  // The scale is a power of two, so the bits must be the same whether it is set before the first
  // backward or between two.
  const auto scaled = values_after(scenario, {}, [](auto& model, int step) {
    const double scale = step < 3 ? 1024.0 : 65536.0;
    model.engine().set_gradient_scale(1.0 / scale);
    (mlp_loss(model.module(), 0, step) * scale).backward();
  });
  expect_equal(scaled, plain);
}

TEST(NonFiniteGradient, IsFoundInTheFirstStepToo) {
  const LaunchOptions launch_options{.num_ranks = 1, .log_level = LogLevel::kOff};
  const int code = launch("threads", launch_options, [](Communicator& communicator, const World&) {
    DecentralizedDataParallel<Bag> model(make_mlp(0), communicator,
                                         Scenario{.num_ranks = 1}.options());
    (mlp_loss(model.module(), 0, 0) * kNan).backward();
    return 0;
  });
  EXPECT_EQ(code, static_cast<int>(ExitCode::kNonFinite));
}

TEST(DetachedParameters, AreMixedNotUpdatedAndNamed) {
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario{.topology = "complete"};
    DataParallelOptions options = scenario.options();
    const bool speaks = communicator.rank() == 0;
    if (speaks) options.logger = Logger(LogLevel::kWarning, "rank 0");
    DecentralizedDataParallel<Bag> model(make_mlp(0), communicator, options);
    const torch::Tensor before = model.module()["w1"].detach().clone();
    if (speaks) testing::internal::CaptureStderr();
    for (int step = 0; step < 3; ++step) {
      Bag& bag = model.module();
      const torch::Tensor hidden =
          torch::tanh(torch::linear(wave({4, 3}, step), bag["w1"].detach(), bag["b1"]));
      torch::linear(hidden, bag["w2"], bag["b2"]).square().sum().backward();
      communicator.barrier();
    }
    model.drain();
    if (speaks) {
      const std::string said = testing::internal::GetCapturedStderr();
      EXPECT_NE(said.find("1 of 4 parameters had no gradient"), std::string::npos) << said;
      EXPECT_NE(said.find(": w1"), std::string::npos) << said;
    }
    EXPECT_TRUE(torch::allclose(model.module()["w1"], before, 1e-15, 0.0));
  });
}

TEST(RetainedGraph, AddsUpWhileAccumulating) {
  // Two backward passes through one graph give twice the gradient; no update comes between them.
  const Scenario scenario{.num_ranks = 1, .num_steps = 3};
  const auto twice = values_after(scenario, {}, [](auto& model, int step) {
    const torch::Tensor loss = mlp_loss(model.module(), 0, step);
    model.set_accumulate_grad(true);
    loss.backward({}, /*retain_graph=*/true);
    model.set_accumulate_grad(false);
    loss.backward();
  });
  const auto doubled = values_after(scenario, {}, [](auto& model, int step) {
    (2.0 * mlp_loss(model.module(), 0, step)).backward();
  });
  for (const auto& [name, tensor] : twice) {
    EXPECT_TRUE(torch::allclose(tensor, doubled.at(name), 1e-13, 1e-15)) << name;
  }
}

TEST(Hooks, AreNeverTakenFromSomebodyElse) {
  on_ranks(1, [](Communicator& communicator) {
    const Scenario scenario{.num_ranks = 1};
    const auto bag = make_mlp(0);
    {
      const DecentralizedDataParallel<Bag> first(bag, communicator, scenario.options());
      EXPECT_THROW(DecentralizedDataParallel<Bag>(bag, communicator, scenario.options()),
                   ConfigError);
    }
    EXPECT_NO_THROW(DecentralizedDataParallel<Bag>(bag, communicator, scenario.options()));
  });
}

}  // namespace
}  // namespace gossamer
