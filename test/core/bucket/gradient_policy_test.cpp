// Tests how clipping, scaling and non-finite gradients affect a step.

#include "core/bucket/gradient_policy.hpp"

#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/problem.hpp"
#include "test/support/sanitized.hpp"

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/options.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "topology/registry.hpp"

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

/// A policy for one bucket with one gradient, on a stream whose work is done at once.
struct OneBucket {
  explicit OneBucket(const GradientOptions& options) : policy(options, stream, 1, 1) {}

  /// The factor for a gradient with this squared norm.
  double factor(double squares, double mean_factor = 1.0) {
    policy.squares().as<double>()[0] = squares;
    return policy.decide(0, {policy.squares()}, mean_factor)->factor;
  }
  void end_step(double squares) {
    policy.squares().as<double>()[0] = squares;
    policy.end_step();
  }

  InlineStream stream;
  GradientPolicy policy;
};

TEST(GradientPolicy, RefusesNormsThatClipEverythingAway) {
  for (const double norm : {0.0, -1.0, kNan, kInf}) {
    EXPECT_THROW(OneBucket({.clip_mode = ClipMode::kGlobal, .clip_norm = norm}), ConfigError);
    EXPECT_NO_THROW(OneBucket({.clip_mode = ClipMode::kNone, .clip_norm = norm}));
  }
}

TEST(GradientPolicy, RefusesANormWithoutAMode) {
  GradientOptions read;
  EXPECT_THROW(read_clipping(Options::parse("grad_clip_norm: 1"), read), ConfigError);
  EXPECT_NO_THROW(read_clipping(Options::parse("{grad_clip: none, grad_clip_norm: 1}"), read));
  read_clipping(Options::parse("{grad_clip: global, grad_clip_norm: 2}"), read);
  EXPECT_EQ(read.clip_mode, ClipMode::kGlobal);
  EXPECT_EQ(read.clip_norm, 2.0);
}

TEST(GradientPolicy, ClipsToAnotherNormFromTheNextStepOn) {
  OneBucket one({});
  EXPECT_EQ(one.factor(25.0), 1.0);
  one.end_step(25.0);
  EXPECT_EQ(one.policy.take_report().norm, 5.0);
  one.policy.set_clipping(ClipMode::kGlobal, 1.0);
  EXPECT_TRUE(one.policy.defers());
  one.policy.decide_step(nullptr);
  EXPECT_DOUBLE_EQ(one.factor(25.0), 1.0 / (5.0 + 1e-6));
  EXPECT_THROW(one.policy.set_clipping(ClipMode::kGlobal, 0.0), ConfigError);
}

TEST(GradientPolicy, ClipsByTheNormOfAllShards) {
  // Squared norms of 9 and 16 are shards of a gradient whose norm is 5.
  run_ranks(2, [](Communicator& communicator, const World& world) {
    OneBucket one({.clip_mode = ClipMode::kGlobal, .clip_norm = 1.0});
    one.policy.squares().as<double>()[0] = world.rank == 0 ? 9.0 : 16.0;
    one.policy.add_norms_of(communicator);
    one.policy.decide_step(nullptr);
    EXPECT_DOUBLE_EQ(one.policy.decide(0, {one.policy.squares()})->factor, 1.0 / (5.0 + 1e-6));
  });
}

TEST(GradientPolicy, DefersOnlyWhatCannotKeepTheOverlap) {
  EXPECT_FALSE(OneBucket({}).policy.defers());
  EXPECT_FALSE(OneBucket({.clip_mode = ClipMode::kPerBucket}).policy.defers());
  EXPECT_TRUE(OneBucket({.clip_mode = ClipMode::kGlobal}).policy.defers());
  EXPECT_TRUE(OneBucket({.nonfinite = NonFinite::kSkip}).policy.defers());
  OneBucket delayed({.clip_mode = ClipMode::kDelayedGlobal});
  EXPECT_TRUE(delayed.policy.defers()) << "the first step has no norm of the step before";
  delayed.end_step(9.0);
  EXPECT_FALSE(delayed.policy.defers());
}

TEST(GradientPolicy, ClipsAsTorchDoes) {
  // g * c / (N + 1e-6) where that is less than 1.
  for (const ClipMode mode : {ClipMode::kGlobal, ClipMode::kPerBucket, ClipMode::kDelayedGlobal}) {
    OneBucket all({.clip_mode = mode, .clip_norm = 1.0});
    all.policy.decide_step(nullptr);
    EXPECT_DOUBLE_EQ(all.factor(16.0), 1.0 / (4.0 + 1e-6));
    EXPECT_DOUBLE_EQ(all.factor(0.25), 1.0);
    EXPECT_DOUBLE_EQ(all.factor(0.0), 1.0);
    EXPECT_DOUBLE_EQ(all.factor(16.0, 0.5), 0.5 / (2.0 + 1e-6)) << "of the mean";
  }
  OneBucket delayed({.clip_mode = ClipMode::kDelayedGlobal, .clip_norm = 1.0});
  delayed.end_step(16.0);
  EXPECT_DOUBLE_EQ(delayed.factor(100.0), 1.0 / (4.0 + 1e-6)) << "the norm of the step before";
  delayed.end_step(0.0);
  EXPECT_DOUBLE_EQ(delayed.factor(100.0), 1.0);
}

TEST(GradientPolicy, ClipsTheScaledGradient) {
  OneBucket one({.clip_mode = ClipMode::kGlobal, .clip_norm = 1.0});
  one.policy.set_scale(1.0 / 1024.0);
  one.policy.decide_step(nullptr);
  EXPECT_DOUBLE_EQ(one.factor(1024.0 * 1024.0 * 4.0), 1.0 / 1024.0 / (2.0 + 1e-6));
  EXPECT_DOUBLE_EQ(one.factor(4.0), 1.0 / 1024.0);
}

TEST(GradientPolicy, ReportsWhatIsNotFinite) {
  for (const NonFinite policy : {NonFinite::kAbort, NonFinite::kSkip, NonFinite::kKeep}) {
    OneBucket one({.nonfinite = policy});
    for (const double squares : {1.0, kNan, kInf, 2.0}) {
      one.policy.squares().as<double>()[0] = squares;
      one.policy.decide_step(nullptr);
      const GradientDecision decision = *one.policy.decide(0, {one.policy.squares()});
      EXPECT_EQ(decision.apply, std::isnan(squares) && policy != NonFinite::kKeep ? 0 : 1);
      one.policy.end_step();
      const StepReport report = one.policy.take_report();
      EXPECT_EQ(report.skipped, std::isnan(squares) && policy == NonFinite::kSkip);
      EXPECT_EQ(report.nonfinite, std::isnan(squares) ? 0 : -1);
    }
  }
}

Problem pairs_of(std::string algorithm, NonFinite nonfinite) {
  Problem problem;
  problem.num_ranks = 4;
  problem.algorithm = std::move(algorithm);
  problem.topology =
      make_topology(topology_for(problem.algorithm, "ring"), {.size = 4, .node_size = 2});
  problem.gradients.nonfinite = nonfinite;
  problem.breaks = [](int rank, int step) { return rank == 2 && step == 3; };
  return problem;
}

/// Changes the gradients of a rank in a step.
using Spoil = std::function<void(int rank, int step, std::vector<double>& gradient)>;

struct Outcome {
  /// The messages of the ranks about gradients that are not finite.
  std::set<std::string> said;
  int code = 0;
};

/// Six steps with gradients of 1, or fewer if the ranks leave before.
Outcome train_with(const Problem& problem, const Spoil& spoil) {
  FakeNcclHub hub;
  Outcome outcome;
  std::mutex mutex;
  const LaunchOptions options{.num_ranks = problem.num_ranks,
                              .node_size = problem.node_size,
                              .timeout_s = 60.0,
                              .log_level = LogLevel::kOff};
  outcome.code = launch("threads", options, [&](Communicator& communicator, const World& world) {
    TestDevice device(problem.where, communicator, hub);
    ToyModel model = model_on(problem, device);
    std::vector<double> gradient(problem.num_values(), 1.0);
    try {
      for (int step = 0; step < 6; ++step) {
        spoil(world.rank, step, gradient);
        model.step(gradient);
        // A gradient that is not finite is neither applied nor sent.
        model.stream().run([&model] {
          for (const double x : model.values_now()) EXPECT_TRUE(std::isfinite(x));
        });
      }
      model.pipeline().drain();
    } catch (const NonFiniteError& error) {
      if (!model.stream().immediate()) {
        // Who goes on all the same hears it again.
        const auto ask = [&model] { static_cast<void>(model.pipeline().metrics()); };
        EXPECT_EQ(what_of<NonFiniteError>(ask), error.what());
      }
      const std::lock_guard lock(mutex);
      outcome.said.insert(error.what());
      throw;
    }
    return 0;
  });
  return outcome;
}

void expect_said(const Outcome& outcome, const std::string& begin) {
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kNonFinite));
  ASSERT_EQ(outcome.said.size(), 1U);
  EXPECT_TRUE(outcome.said.begin()->starts_with(begin)) << *outcome.said.begin();
}

constexpr const char* kRank2 = "rank 2, step 4: the gradient of p5 is not finite";

Spoil spoil_rank_2(double poison) {
  return [poison](int rank, int step, std::vector<double>& gradient) {
    if (rank == 2 && step == 3) gradient.back() = poison;
  };
}

TEST(Abort, NamesRankStepAndParameterBeforeAnythingIsSent) {
  for (const double poison : {kNan, kInf, -kInf}) {
    for (const std::string& algorithm : algorithms_in_step()) {
      SCOPED_TRACE(concat(algorithm, ", ", poison));
      expect_said(train_with(pairs_of(algorithm, NonFinite::kAbort), spoil_rank_2(poison)), kRank2);
    }
  }
}

TEST(Abort, IsToldOneStepLaterWhereStreamsLag) {
  std::size_t count = 0;
  for (const Where where : kLaggingPlaces) {
    for (const std::string& algorithm : algorithms_in_step()) {
      if (!runs_at(algorithm, where)) continue;
      // Under sanitizers every algorithm is at one or two of the places.
      if (kSanitized && ++count % 4 != 0) continue;
      for (const std::string& topology :
           std::set{topology_for(algorithm, "ring"), topology_for(algorithm, "hierarchical")}) {
        SCOPED_TRACE(concat(name_of(where), ", ", algorithm, ", ", topology));
        Problem problem = pairs_of(algorithm, NonFinite::kAbort);
        problem.where = where;
        problem.node_size = 2;
        problem.topology = make_topology(topology, {.size = 4, .node_size = 2});
        const Outcome outcome = train_with(problem, spoil_rank_2(kNan));
        if (algorithm != "allreduce" && algorithm != "node_gossip") {
          expect_said(outcome, kRank2);
          continue;
        }
        // The other ranks see only the sum.
        EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kNonFinite));
        EXPECT_FALSE(outcome.said.empty());
        for (const std::string& text : outcome.said) {
          EXPECT_TRUE(text.starts_with(kRank2) ||
                      text.starts_with("step 4: the sum of the ranks' gradients of p5 is not"))
              << text;
        }
      }
    }
  }
}

TEST(Abort, TellsSumsThatOverflowFromGradientsThatAreNotFinite) {
  const Spoil all_large = [](int, int, std::vector<double>& gradient) {
    gradient.back() = std::numeric_limits<double>::max() / 2.0;
  };
  for (const Where where : {Where::kHost, Where::kLagging, Where::kDevice}) {
    SCOPED_TRACE(name_of(where));
    Problem problem = pairs_of("allreduce", NonFinite::kAbort);
    problem.where = where;
    expect_said(train_with(problem, all_large),
                "step 1: the sum of the ranks' gradients of p5 is not finite, though this rank's "
                "own is");
  }
}

// The ranks leave while their workers still have operations of a chain to start; the sanitizers
// check that the workers use no memory that is gone.
TEST(Abort, LeavesNothingBehindThatTheWorkerWouldUse) {
  Problem problem = pairs_of("gossip", NonFinite::kAbort);
  problem.node_size = 2;
  problem.topology = make_topology("hierarchical", {.size = 4, .node_size = 2});
  for (int turn = 0; turn < 20; ++turn) {
    expect_said(train_with(problem, spoil_rank_2(kNan)), kRank2);
  }
}

TEST(Skip, LeavesTheStepOutOnAllRanksAndGoesOnMixing) {
  for (const std::string& algorithm : algorithms_in_step()) {
    const Problem problem = pairs_of(algorithm, NonFinite::kSkip);
    run_ranks(4, [&](Communicator& communicator, const World& world) {
      ToyModel model = model_of(problem, communicator);
      for (int step = 0; step < 8; ++step) {
        const double lr = model.pipeline().lr();
        train_step(problem, model, world.rank, step);
        const bool skipped = step == 3 && (algorithm != "local" || world.rank == 2);
        EXPECT_EQ(model.pipeline().lr() == lr, skipped) << algorithm << ", step " << step;
      }
      model.pipeline().drain();
      EXPECT_EQ(model.pipeline().progress().num_steps, 8);
      EXPECT_EQ(model.pipeline().progress().num_skipped,
                algorithm != "local" || world.rank == 2 ? 1 : 0);
    });
  }
}

TEST(Threads, DoNotChangeABit) {
  for (const ClipMode mode : {ClipMode::kNone, ClipMode::kGlobal}) {
    Problem problem;
    problem.topology = make_topology("ring", {.size = 2, .node_size = 2});
    problem.rule.type = "accum_adamw";
    problem.rule.accum_iter = 2;
    problem.dtype = DType::kFloat32;
    // Larger than the least size that threads share, and odd sizes.
    problem.sizes = {70'001, 3, 200'003};
    problem.bucket_bytes = 1 << 30;
    problem.num_steps = kSanitized ? 2 : 4;
    problem.gradients = {.clip_mode = mode, .clip_norm = 5.0};
    const Trajectory alone = run_pipeline(problem);
    for (const int threads : kSanitized ? std::vector{3} : std::vector{2, 3, 5}) {
      problem.num_threads = threads;
      EXPECT_EQ(run_pipeline(problem), alone) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace gossamer
