// Tests QAdam: all-reduce that sends momentum, with the optimizer qadam.

#include "test/base/thrown.hpp"
#include "test/core/expected.hpp"
#include "test/support/recursion/coded_mixing.hpp"
#include "test/support/sanitized.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

constexpr int kWarmup = 4;

Problem problem_of(int num_ranks, std::string codec) {
  return {.num_ranks = num_ranks,
          .algorithm = "allreduce",
          .algorithm_options = "sends: momentum",
          .codec = std::move(codec),
          .rule = {.type = "qadam", .beta2 = 0.95, .eps = 1e-3, .warmup = kWarmup},
          .lr = 0.02,
          .num_steps = 10,
          .same_start = true};
}

/// The papers' recursion, with whole vectors in double. All ranks are equal, so there is one x.
Trajectory expected_of(const Problem& problem) {
  const reference::Rule& rule = problem.rule;
  const CodedMixing codec(problem.codec);
  const bool rounds = problem.codec != "fp32" && problem.num_ranks > 1;
  const auto sent = [&](const std::vector<double>& x, bool coded) {
    return coded && rounds ? codec.sent(x) : x;
  };
  std::vector<double> x = start_of(problem, 0);
  std::vector<double> m(x.size());
  std::vector<double> v(x.size());
  Trajectory trajectory;
  for (int step = 0; step < problem.num_steps; ++step) {
    const bool warms_up = step < rule.warmup;
    std::vector<double> sum(x.size());
    for (int rank = 0; rank < problem.num_ranks; ++rank) {
      std::vector<double> block = gradient_at(x, rank, step);
      for (std::size_t e = 0; e < x.size(); ++e) {
        if (!warms_up) block[e] = rule.beta1 * m[e] + (1.0 - rule.beta1) * block[e];
      }
      block = sent(block, !warms_up);
      for (std::size_t e = 0; e < x.size(); ++e) sum[e] += block[e];
    }
    sum = sent(sum, !warms_up);
    const double lr = FixedSchedule(problem.lr).lr(step);
    const int frozen = std::min(step + 1, kWarmup);
    for (std::size_t e = 0; e < x.size(); ++e) {
      const double mean = sum[e] / problem.num_ranks;
      const double decay = problem.weight_decay * x[e];
      if (warms_up) {
        m[e] = rule.beta1 * m[e] + (1.0 - rule.beta1) * (mean + decay);
        v[e] = rule.beta2 * v[e] + (1.0 - rule.beta2) * (mean + decay) * (mean + decay);
      } else {
        m[e] = mean + (1.0 - rule.beta1) * decay;
      }
      const double correction1 = 1.0 - std::pow(rule.beta1, step + 1);
      const double correction2 = 1.0 - std::pow(rule.beta2, frozen);
      x[e] -= lr * m[e] / correction1 / (std::sqrt(v[e] / correction2) + rule.eps);
    }
    trajectory.emplace_back(static_cast<std::size_t>(problem.num_ranks), x);
  }
  return trajectory;
}

TEST(QAdam, FollowsThePapersRecursion) {
  for (int n = 1; n <= (kSanitized ? 3 : 5); ++n) {
    for (const char* codec : {"fp32", "bf16", "fp16"}) {
      for (const char* options : {"sends: momentum", "sends: momentum, overlap: false"}) {
        SCOPED_TRACE(concat(n, " ranks, ", codec, ", ", options));
        Problem problem = problem_of(n, codec);
        problem.algorithm_options = options;
        EXPECT_LE(largest_difference(run_pipeline(problem), expected_of(problem)), 1e-12);
        if (n == 1 || problem.codec == "fp32") continue;
        Problem plain = problem;
        plain.codec = "fp32";
        EXPECT_GT(largest_difference(expected_of(plain), expected_of(problem)), 1e-6);
      }
    }
  }
}

TEST(QAdam, IsAdamWithPlainSumsDuringTheWarmUp) {
  for (const int n : {2, 3}) {
    Problem problem = problem_of(n, "int8");
    problem.dtype = DType::kFloat32;
    const Trajectory found = run_pipeline(problem);
    problem.rule.type = "adam";
    problem.algorithm_options = "";
    problem.codec = "fp32";
    const Trajectory adam = run_pipeline(problem);
    for (int step = 0; step < problem.num_steps; ++step) {
      const auto s = static_cast<std::size_t>(step);
      EXPECT_EQ(found[s] == adam[s], step < kWarmup) << n << " ranks, step " << step;
    }
  }
}

/// Sums of momentum without rounding give the mean gradient, whatever happens to gradients.
TEST(QAdam, ClipsScalesAndSkipsAsSumsOfGradientsDo) {
  for (const ClipMode mode : {ClipMode::kNone, ClipMode::kGlobal, ClipMode::kDelayedGlobal}) {
    for (const bool average : {true, false}) {
      SCOPED_TRACE(concat(clip_mode_names()[static_cast<std::size_t>(mode)], ", ", average));
      Problem problem = problem_of(3, "fp32");
      problem.algorithm_options = concat("average: ", average ? "true" : "false");
      problem.gradients = {.clip_mode = mode, .clip_norm = 0.6, .nonfinite = NonFinite::kSkip};
      problem.gradient_scale = 0.5;
      problem.breaks = [](int rank, int step) { return step % 4 == 1 && rank == step % 3; };
      problem.present = some_are_missing;
      const Trajectory expected = expected_trajectory(problem);
      problem.algorithm_options += ", sends: momentum";
      EXPECT_LE(largest_difference(run_pipeline(problem), expected), 1e-12);
    }
  }
}

TEST(QAdam, StaysNearPlainSumsAndKeepsTheRanksEqualInBytes) {
  for (const int n : {2, 3, 4}) {
    Problem problem = problem_of(n, "int8");
    problem.dtype = DType::kFloat32;
    problem.present = some_are_missing;
    problem.gradients = {.nonfinite = NonFinite::kSkip};
    problem.breaks = [n](int rank, int step) { return step == 7 && rank == step % n; };
    const Trajectory found = run_pipeline(problem);
    for (const auto& ranks : found) {
      for (const std::vector<double>& x : ranks) EXPECT_EQ(x, ranks.front());
    }
    Problem plain = problem;
    plain.codec = "fp32";
    const double difference = largest_difference(found, run_pipeline(plain));
    // A step moves a parameter by up to the learning rate, 0.02.
    EXPECT_LT(difference, 0.02);
    EXPECT_GT(difference, 1e-6);
    for (const Where where : {Where::kLagging, Where::kRelayed}) {
      problem.where = where;
      EXPECT_EQ(run_pipeline(problem), found) << name_of(where);
    }
  }
}

TEST(QAdam, TrainsAModelInBFloat16LikeItsMasterCopy) {
  Problem problem = problem_of(3, "int8");
  problem.rounds_gradients = true;
  problem.dtype = DType::kFloat32;
  const Trajectory expected = run_pipeline(problem);
  problem.dtype = DType::kBFloat16;
  EXPECT_EQ(run_pipeline(problem), expected);
}

TEST(QAdam, SendsFullGradientsDuringTheWarmUpAndBytesAfterwards) {
  for (const int n : {1, 2, 3}) {
    Problem problem = problem_of(n, "int8");
    problem.dtype = DType::kFloat32;
    problem.sizes = {5000};
    problem.bucket_bytes = 1 << 20;
    run_ranks(n, [&](Communicator& communicator, const World& world) {
      ToyModel model = model_of(problem, communicator);
      // Padding included.
      const std::int64_t numel = model.pipeline().buckets().front().spec().numel;
      const std::int64_t shard = (numel + n - 1) / n;
      // One flag for the parameter.
      const std::int64_t message = shard + 4 * ((shard + 1023) / 1024) + 4;
      const double coded = 2.0 * (n - 1) * static_cast<double>(message);
      const double plain = 2.0 * (n - 1) / n * 4.0 * static_cast<double>(numel + 1);
      double before = 0.0;
      for (int step = 0; step < problem.num_steps; ++step) {
        train_step(problem, model, world.rank, step);
        const double sent = model.pipeline().metrics().bytes_sent - before;
        EXPECT_NEAR(sent, step < kWarmup ? plain : coded, 1e-6) << n << " ranks, step " << step;
        before += sent;
      }
      model.pipeline().drain();
    });
  }
}

TEST(QAdam, NeedsItsOptimizerAndNoDelay) {
  run_ranks(1, [](Communicator& communicator, const World&) {
    for (const char* rule : {"sgd", "adamw"}) {
      Problem problem = problem_of(1, "fp32");
      problem.rule = {.type = rule};
      const std::string what = what_of<ConfigError>([&] { (void)model_of(problem, communicator); });
      EXPECT_TRUE(contains(what, "take the optimizer qadam, or send gradients")) << what;
    }
  });
  const std::string what = what_of<ConfigError>(
      [] { (void)AlgorithmChoice("allreduce", Options::parse("delay: 1, sends: momentum")); });
  EXPECT_TRUE(contains(what, "sends")) << what;
  EXPECT_TRUE(contains(what, "allowed with delay 1: gradients")) << what;
}

}  // namespace
}  // namespace gossamer
