// What clipping, scaling and non-finite gradients do to a step.

#include "gossamer/core/engine/gradient_policy.hpp"

#include "engine/recursion.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gossamer/core/base/error.hpp"
#include "gossamer/topology/registry.hpp"

namespace gossamer {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(GradientPolicy, KnowsItsNames) {
  EXPECT_EQ(clip_mode("per-bucket"), ClipMode::kPerBucket);
  EXPECT_EQ(clip_mode("delayed_global"), ClipMode::kDelayedGlobal);
  EXPECT_EQ(clip_mode_names().size(), 4U);
  EXPECT_EQ(nonfinite("skip"), NonFinite::kSkip);
  EXPECT_THROW(clip_mode("gobal"), ConfigError);
  EXPECT_THROW(nonfinite("ignore"), ConfigError);
}

TEST(GradientPolicy, RefusesNormsThatClipEverythingAway) {
  for (const double norm : {0.0, -1.0, kNan, kInf}) {
    EXPECT_THROW(GradientPolicy({.clip_mode = ClipMode::kGlobal, .clip_norm = norm}, 0),
                 ConfigError);
    EXPECT_NO_THROW(GradientPolicy({.clip_mode = ClipMode::kNone, .clip_norm = norm}, 0));
  }
}

TEST(GradientPolicy, DefersOnlyWhatCannotKeepTheOverlap) {
  EXPECT_FALSE(GradientPolicy({}, 0).defers());
  EXPECT_FALSE(GradientPolicy({.clip_mode = ClipMode::kPerBucket}, 0).defers());
  EXPECT_TRUE(GradientPolicy({.clip_mode = ClipMode::kGlobal}, 0).defers());
  EXPECT_TRUE(GradientPolicy({.nonfinite = NonFinite::kSkip}, 0).defers());
  GradientPolicy delayed({.clip_mode = ClipMode::kDelayedGlobal}, 0);
  EXPECT_TRUE(delayed.defers()) << "the first step has no norm of the step before";
  delayed.end_step(9.0);
  EXPECT_FALSE(delayed.defers());
}

TEST(GradientPolicy, ClipsAsTorchDoes) {
  // g * c / (N + 1e-6) where that is less than 1.
  GradientPolicy global({.clip_mode = ClipMode::kGlobal, .clip_norm = 1.0}, 0);
  global.settle(nullptr, 16.0);
  EXPECT_DOUBLE_EQ(global.factor(0.25), 1.0 / (4.0 + 1e-6));
  global.settle(nullptr, 0.25);
  EXPECT_DOUBLE_EQ(global.factor(0.25), 1.0);
  global.settle(nullptr, 0.0);
  EXPECT_DOUBLE_EQ(global.factor(0.0), 1.0);
  const GradientPolicy bucket({.clip_mode = ClipMode::kPerBucket, .clip_norm = 1.0}, 0);
  EXPECT_DOUBLE_EQ(bucket.factor(4.0), 1.0 / (2.0 + 1e-6));
  GradientPolicy delayed({.clip_mode = ClipMode::kDelayedGlobal, .clip_norm = 1.0}, 0);
  delayed.settle(nullptr, 4.0);
  EXPECT_DOUBLE_EQ(delayed.factor(1.0), 1.0 / (2.0 + 1e-6)) << "the first step's own norm";
  delayed.end_step(16.0);
  EXPECT_DOUBLE_EQ(delayed.factor(100.0), 1.0 / (4.0 + 1e-6));
}

TEST(GradientPolicy, ClipsTheScaledGradient) {
  GradientPolicy policy({.clip_mode = ClipMode::kGlobal, .clip_norm = 1.0}, 0);
  policy.set_scale(1.0 / 1024.0);
  policy.settle(nullptr, 1024.0 * 1024.0 * 4.0);
  EXPECT_DOUBLE_EQ(policy.factor(0.0), 1.0 / 1024.0 / (2.0 + 1e-6));
  policy.settle(nullptr, 4.0);
  EXPECT_DOUBLE_EQ(policy.factor(0.0), 1.0 / 1024.0);
}

Problem pairs_of(std::string algorithm, NonFinite nonfinite) {
  Problem problem;
  problem.num_ranks = 4;
  problem.algorithm = std::move(algorithm);
  problem.topology = make_topology("ring", {.size = 4, .local_size = 4});
  problem.gradients.nonfinite = nonfinite;
  problem.breaks = [](int rank, int step) { return rank == 2 && step == 3; };
  return problem;
}

TEST(Abort, NamesRankStepAndParameterBeforeAnythingIsSent) {
  for (const double poison : {kNan, kInf, -kInf}) {
    for (const std::string& algorithm : algorithm_names()) {
      Problem problem = pairs_of(algorithm, NonFinite::kAbort);
      std::mutex mutex;
      std::set<std::string> said;
      const LaunchOptions options{.num_ranks = 4, .timeout_s = 60.0, .log_level = LogLevel::kOff};
      const auto body = [&](Communicator& communicator, const World& world) {
        ToyModel model = model_of(problem, communicator);
        std::vector<double> gradient(problem.num_values(), 1.0);
        try {
          for (int step = 0; step < 6; ++step) {
            if (world.rank == 2 && step == 3) gradient.back() = poison;
            model.step(gradient);
            for (const double x : model.values()) EXPECT_TRUE(std::isfinite(x));
          }
          model.manager().drain();
        } catch (const NonFiniteError& error) {
          const std::lock_guard lock(mutex);
          said.insert(error.what());
          throw;
        }
        return 0;
      };
      const int code = launch("threads", options, body);
      ASSERT_EQ(said.size(), 1U) << algorithm;
      EXPECT_TRUE(said.begin()->starts_with("rank 2, step 4: the gradient of p5 is not finite"))
          << *said.begin();
      EXPECT_EQ(code, static_cast<int>(ExitCode::kNonFinite)) << algorithm;
    }
  }
}

TEST(Skip, LeavesTheStepOutOnAllRanksAndGoesOnMixing) {
  for (const std::string& algorithm : algorithm_names()) {
    const Problem problem = pairs_of(algorithm, NonFinite::kSkip);
    run_ranks(4, [&](Communicator& communicator, const World& world) {
      ToyModel model = model_of(problem, communicator);
      for (int step = 0; step < 8; ++step) {
        const double lr = model.manager().lr();
        train_step(problem, model, world.rank, step);
        const bool skipped = step == 3 && (algorithm != "local" || world.rank == 2);
        EXPECT_EQ(model.manager().lr() == lr, skipped) << algorithm << ", step " << step;
      }
      model.manager().drain();
      EXPECT_EQ(model.manager().metrics().num_steps, 8);
      EXPECT_EQ(model.manager().metrics().num_skipped,
                algorithm != "local" || world.rank == 2 ? 1 : 0);
    });
  }
}

TEST(Threads, DoNotChangeABit) {
  for (const ClipMode mode : {ClipMode::kNone, ClipMode::kGlobal}) {
    Problem problem;
    problem.topology = make_topology("ring", {.size = 2, .local_size = 2});
    problem.rule.type = "accum_adamw";
    problem.rule.accum_iter = 2;
    problem.dtype = DType::kFloat32;
    // Larger than what is worth sharing, and not a multiple of anything.
    problem.sizes = {70'001, 3, 200'003};
    problem.bucket_bytes = 1 << 30;
    problem.num_steps = 4;
    problem.gradients = {.clip_mode = mode, .clip_norm = 5.0};
    const Trajectory alone = run_pipeline(problem);
    for (const int threads : {2, 3, 5}) {
      problem.num_threads = threads;
      EXPECT_EQ(run_pipeline(problem), alone) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace gossamer
