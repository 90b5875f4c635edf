// Tests the noise of gradients, and what a recipe for all-reduce becomes.

#include "core/step/recipe.hpp"

#include "test/base/thrown.hpp"
#include "test/core/problem.hpp"
#include "test/core/step/saved_state.hpp"

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/host_stream.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

/// The ratio of ranks with these gradients, for an optimizer that divides by means of
/// `num_accumulated` gradients.
double ratio_of(const std::vector<std::vector<double>>& gradients,
                std::int64_t num_accumulated = 1) {
  double ratio = 0.0;
  run_ranks(static_cast<int>(gradients.size()),
            [&](Communicator& communicator, const World& world) {
              std::vector<double> own = gradients[static_cast<std::size_t>(world.rank)];
              const ConstBlock gradient(own.data(), std::ssize(own), DType::kFloat64);
              InlineStream stream;
              GradientNoise noise(stream, {gradient.numel});
              noise.begin(0);
              noise.add(0, gradient);
              noise.start(communicator);
              noise.finish();
              if (world.rank == 0) ratio = noise.ratio(num_accumulated);
            });
  return ratio;
}

TEST(GradientNoise, IsTheLengthOfARanksGradientOverThatOfTheMean) {
  EXPECT_NEAR(ratio_of({{1, 1}, {1, -1}, {1, 0}}), std::sqrt(5.0 / 3.0), 1e-6);
}

TEST(GradientNoise, IsOneWhereRanksHaveOneGradient) {
  EXPECT_NEAR(ratio_of({{1, 2}, {1, 2}}), 1.0, 1e-6);
}

TEST(GradientNoise, IsTheRootOfTheRanksWhereGradientsAreNoiseAlone) {
  EXPECT_NEAR(ratio_of({{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}}), 2.0, 1e-6);
}

TEST(GradientNoise, IsSmallerForMeansOfTwoGradients) {
  // A signal of squared norm 1 and noise of squared norm 1, of which two gradients leave a half.
  const double ratio =
      ratio_of({{1, 1, 0, 0, 0}, {1, 0, 1, 0, 0}, {1, 0, 0, 1, 0}, {1, 0, 0, 0, 1}}, 2);
  EXPECT_NEAR(ratio, std::sqrt(1.5 / 1.125), 1e-6);
}

TEST(GradientNoise, LeavesOutAGradientThatIsNotFinite) {
  EXPECT_EQ(ratio_of({{1, std::nan("")}, {1, 1}}), 1.0);
}

TEST(GradientNoise, IsOneBeforeTheFirstSample) {
  InlineStream stream;
  EXPECT_EQ(GradientNoise(stream, {100}).ratio(), 1.0);
}

TEST(GradientNoise, SamplesLargeGradients) {
  // 16,384 elements of a million, in which the ranks have opposite halves.
  std::vector<std::vector<double>> gradients(2, std::vector<double>(1'000'000));
  for (std::size_t e = 0; e < gradients[0].size(); ++e) {
    gradients[0][e] = 1.0;
    gradients[1][e] = e % 2 == 0 ? 1.0 : -1.0;
  }
  EXPECT_NEAR(ratio_of(gradients), std::sqrt(2.0), 1e-6);
}

/// Two ranks whose one parameter has the gradients (1, 1) and (1, -1), so that the ratio is the
/// root of 2. They have the same first element.
Problem two_ranks(std::string_view optimizer) {
  return {.topology = make_topology("complete", {.size = 2, .node_size = 2}),
          .rule = {.type = std::string(optimizer)},
          .lr = 0.5,
          .weight_decay = 0.0,
          .sizes = {2},
          .gradients = {.recipe = Recipe::kAllReduce}};
}

/// The first element of rank 0 before and after the steps, which begin at 1.
std::vector<double> first_elements(const Problem& problem, int num_steps) {
  std::vector<double> found;
  run_ranks(2, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    model.write(std::vector<double>{1.0, 1.0});
    for (int step = 0; step <= num_steps; ++step) {
      if (world.rank == 0) found.push_back(model.values().front());
      model.step(std::vector<double>{1.0, world.rank == 0 ? 1.0 : -1.0});
    }
    model.pipeline().drain();
  });
  return found;
}

/// The step that goes to `after`, over the schedule's rate.
double step_over_rate(const std::vector<double>& elements, std::size_t after) {
  const double lr = FixedSchedule(0.5).lr(static_cast<std::int64_t>(after) - 1);
  return (elements[after - 1] - elements[after]) / lr;
}

TEST(Recipe, LengthensStepsOfAdamAfterTenSteps) {
  const std::vector<double> elements = first_elements(two_ranks("adamw"), 11);
  EXPECT_NEAR(step_over_rate(elements, 10), 1.0, 1e-6);
  EXPECT_NEAR(step_over_rate(elements, 11), std::sqrt(2.0), 1e-6);
}

TEST(Recipe, LeavesWeightDecayAsItIs) {
  Problem problem = two_ranks("adamw");
  problem.weight_decay = 0.25;
  const std::vector<double> elements = first_elements(problem, 11);
  const double lr = FixedSchedule(0.5).lr(10);
  const double decayed = elements[10] * (1.0 - lr * 0.25);
  EXPECT_NEAR((decayed - elements[11]) / lr, std::sqrt(2.0), 1e-6);
}

TEST(Recipe, LeavesTheRateOfDescentAsItIs) {
  Problem problem = two_ranks("sgd");
  problem.gradients.clip_mode = ClipMode::kGlobal;
  problem.gradients.clip_norm = 100.0;
  const std::vector<double> elements = first_elements(problem, 11);
  EXPECT_NEAR(step_over_rate(elements, 11), 1.0, 1e-6);
}

TEST(Recipe, MultipliesTheNorm) {
  // The gradients have the norm of the root of 2, to which the norm 1 then grows.
  for (const ClipMode mode : {ClipMode::kGlobal, ClipMode::kPerBucket, ClipMode::kDelayedGlobal}) {
    Problem problem = two_ranks("sgd");
    problem.gradients.clip_mode = mode;
    const std::vector<double> elements = first_elements(problem, 11);
    EXPECT_NEAR(step_over_rate(elements, 10), std::sqrt(0.5), 1e-5);
    EXPECT_NEAR(step_over_rate(elements, 11), 1.0, 1e-5);
  }
}

TEST(Recipe, ShortensByTheMeansThatAccumAdamTakes) {
  Problem problem = two_ranks("accum_adamw");
  problem.rule.accum_iter = 2;
  problem.num_steps = 30;
  Problem own = problem;
  own.gradients.recipe = Recipe::kOwn;
  // A signal of squared norm 0 or more: (A - B) * 2 = 2 of noise, and none of signal.
  const std::vector<double> found = first_elements(problem, 12);
  const std::vector<double> plain = first_elements(own, 12);
  EXPECT_NEAR((found[11] - found[12]) / (plain[11] - plain[12]), std::sqrt(2.0), 1e-6);
}

/// A problem of four ranks with noise, and the values after 25 steps.
Problem noisy_problem(std::string_view optimizer, Recipe recipe) {
  return {.num_ranks = 4,
          .topology = make_topology("one-peer-exp", {.size = 4, .node_size = 4}),
          .rule = {.type = std::string(optimizer)},
          .dtype = DType::kFloat32,
          .num_steps = 25,
          .gradients = {.clip_mode = ClipMode::kGlobal, .recipe = recipe}};
}

TEST(Recipe, ChangesATrajectory) {
  EXPECT_NE(run_pipeline(noisy_problem("adamw", Recipe::kAllReduce)),
            run_pipeline(noisy_problem("adamw", Recipe::kOwn)));
}

TEST(Recipe, ChangesNothingForAnOptimizerWithoutARule) {
  EXPECT_EQ(run_pipeline(noisy_problem("lion", Recipe::kAllReduce)),
            run_pipeline(noisy_problem("lion", Recipe::kOwn)));
}

TEST(Recipe, MeasuresAndChangesNothingWhereTheCallerAppliesIt) {
  Problem problem = noisy_problem("adamw", Recipe::kMeasured);
  EXPECT_EQ(run_pipeline(problem), run_pipeline(noisy_problem("adamw", Recipe::kOwn)));
  run_ranks(4, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    for (int step = 0; step < 10; ++step) train_step(problem, model, world.rank, step);
    EXPECT_GT(model.pipeline().recipe_factor(), 1.01);
    model.pipeline().drain();
  });
}

TEST(Recipe, ChangesNothingUnderAllReduce) {
  Problem problem = noisy_problem("adamw", Recipe::kAllReduce);
  problem.algorithm = "allreduce";
  problem.same_start = true;
  Problem own = problem;
  own.gradients.recipe = Recipe::kOwn;
  EXPECT_EQ(run_pipeline(problem), run_pipeline(own));
}

TEST(Recipe, HasTheSameBitsWhereWorkLagsBehind) {
  Problem problem = noisy_problem("adamw", Recipe::kAllReduce);
  const Trajectory at_once = run_pipeline(problem);
  for (const Where where : kLaggingPlaces) {
    problem.where = where;
    EXPECT_EQ(run_pipeline(problem), at_once) << name_of(where);
  }
}

TEST(Recipe, TakesGradientsOfABfloat16Model) {
  Problem problem = noisy_problem("adamw", Recipe::kAllReduce);
  problem.dtype = DType::kBFloat16;
  Problem own = problem;
  own.gradients.recipe = Recipe::kOwn;
  EXPECT_NE(run_pipeline(problem), run_pipeline(own));
}

/// Rank 0's values after 25 steps. After `saved_after` steps another pipeline goes on.
std::vector<double> values_through_state(int saved_after) {
  const Problem problem = noisy_problem("adamw", Recipe::kAllReduce);
  std::vector<double> values;
  run_ranks(4, [&](Communicator& communicator, const World& world) {
    auto model = std::unique_ptr<ToyModel>(new ToyModel(model_of(problem, communicator)));
    for (int step = 0; step < problem.num_steps; ++step) {
      if (step == saved_after) {
        SavedState state;
        Saver saver(state);
        model->pipeline().visit(saver);
        model = std::unique_ptr<ToyModel>(new ToyModel(model_of(problem, communicator)));
        Loader loader(state);
        model->pipeline().visit(loader);
      }
      train_step(problem, *model, world.rank, step);
    }
    model->pipeline().drain();
    if (world.rank == 0) values = model->values();
  });
  return values;
}

TEST(Recipe, GoesOnFromItsState) {
  const std::vector<double> straight = values_through_state(-1);
  // Between two samples, after a sample, and before the step that takes a result.
  for (const int saved_after : {5, 11, 19, 20, 21}) {
    EXPECT_EQ(values_through_state(saved_after), straight) << saved_after;
  }
}

/// Why the rule says nothing about `algorithm` with `optimizer`.
std::string reason_for(const AlgorithmChoice& algorithm, std::string_view optimizer,
                       ClipMode clip_mode = ClipMode::kGlobal) {
  const auto rule = make_optimizer(optimizer, Options());
  return why_no_recipe(algorithm, {.optimizer = rule.get(), .num_ranks = 4},
                       {.clip_mode = clip_mode}, false);
}

TEST(Recipe, HoldsForWhatWasMeasured) {
  EXPECT_EQ(reason_for("gossip", "adamw"), "");
  EXPECT_EQ(reason_for("gossip", "accum_adam"), "");
  EXPECT_EQ(reason_for("gossip", "muon"), "");
  EXPECT_EQ(reason_for("gossip", "sgd"), "");
  EXPECT_EQ(reason_for({"gossip", Options::parse("share_moments: 32")}, "adamw"), "");
  EXPECT_EQ(reason_for({"outer", Options::parse("every: 2, lr: 1, momentum: 0")}, "adam"), "");
}

TEST(Recipe, SaysWhyNothingChanges) {
  EXPECT_EQ(reason_for("allreduce", "adamw"), "allreduce updates with the mean gradient");
  const auto no_rule = [](const AlgorithmChoice& algorithm) {
    return contains(reason_for(algorithm, "adamw"), "no rule has been found for the algorithm");
  };
  EXPECT_TRUE(no_rule("relay"));
  EXPECT_TRUE(no_rule({"outer", Options::parse("every: 3, lr: 1, momentum: 0")}));
  EXPECT_TRUE(no_rule({"outer", Options::parse("every: 2, lr: 1, momentum: 0.5")}));
  EXPECT_EQ(reason_for("gossip", "lion"), "no rule has been found for the optimizer");
  EXPECT_EQ(reason_for("gossip", "sgd", ClipMode::kNone),
            "the optimizer's steps are linear in the gradients, which are not clipped");
}

}  // namespace
}  // namespace gossamer
