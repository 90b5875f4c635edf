// Tests every algorithm on every topology and world size against the recursion in double.

#include "test/base/thrown.hpp"
#include "test/core/algorithms/every_algorithm.hpp"

#include <array>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "topology/edge_weights.hpp"

namespace gossamer {
namespace {

TEST(Variants, AreOfAlgorithmsInStep) {
  const std::vector<std::string> names = algorithms_in_step();
  for (const auto& [name, options] : kOptionVariants) {
    EXPECT_TRUE(std::ranges::find(names, name) != names.end()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, EveryAlgorithm,
                         testing::ValuesIn(those(all_setups(), stands_for_all)), setup_name);
INSTANTIATE_TEST_SUITE_P(Wide, EveryAlgorithm,
                         testing::ValuesIn(those(all_setups(), stands_for_all, false)), setup_name);

class EveryPolicy : public EveryAlgorithm {};
INSTANTIATE_TEST_SUITE_P(Setups, EveryPolicy,
                         testing::ValuesIn(those(all_setups(), tests_policies)), setup_name);
INSTANTIATE_TEST_SUITE_P(Wide, EveryPolicy,
                         testing::ValuesIn(those(all_setups(), tests_policies, false)), setup_name);

/// Policies that the sanitizers leave out: they reach the code of the others.
class EveryFurtherPolicy : public EveryAlgorithm {};
INSTANTIATE_TEST_SUITE_P(Setups, EveryFurtherPolicy,
                         testing::ValuesIn(kSanitized ? std::vector<Setup>()
                                                      : those(all_setups(), tests_policies)),
                         setup_name);
INSTANTIATE_TEST_SUITE_P(Wide, EveryFurtherPolicy,
                         testing::ValuesIn(those(all_setups(), tests_policies, false)), setup_name);

class EveryTopology : public EveryAlgorithm {};
INSTANTIATE_TEST_SUITE_P(Setups, EveryTopology,
                         testing::ValuesIn(kSanitized ? those(gossip_setups(), stands_for_all)
                                                      : gossip_setups()),
                         setup_name);

TEST_P(EveryTopology, FollowsTheRecursion) {
  const Problem plain = problem();
  EXPECT_LE(largest_difference(run_pipeline(plain), expected_trajectory(plain)), 1e-12);
}

TEST_P(EveryAlgorithm, FollowsTheRecursion) { expect_recursion(problem()); }

TEST_P(EveryAlgorithm, GivesTheSameBitsWhereverStreamsLag) {
  Problem late = problem();
  late.dtype = DType::kFloat32;
  expect_same_where_streams_lag(late, kLaggingPlaces);
}

TEST_P(EveryFurtherPolicy, FollowsTheRecursionWithAccumAdamW) {
  Problem adaptive = problem();
  adaptive.rule = {.type = "accum_adamw", .eps = 1e-3, .accum_iter = 3};
  adaptive.lr = 0.02;
  expect_recursion(adaptive);
}

TEST_P(EveryPolicy, FollowsTheRecursionWithRulesThatSeeMixing) {
  const std::array<std::pair<const char*, const char*>, 4> rules = {
      {{"qg_sgd", ""}, {"adamw", ""}, {"extra", "sgd"}, {"extra", "accum_adamw"}}};
  for (const auto& [type, inner] : rules) {
    Problem sees = problem();
    sees.rule.type = type;
    sees.rule.inner = inner;
    if (sees.rule.type == "adamw") sees.rule.mixing_momentum = 0.3;
    if (!shows_mixing(sees.algorithm, sees.algorithm_options)) continue;
    if (sees.rule.mixing_momentum > 0.0 &&
        AlgorithmChoice(sees.algorithm).entry().averages_rarely) {
      continue;
    }
    sees.rule.momentum = 0.9;
    sees.rule.eps = 1e-3;
    sees.rule.accum_iter = 3;
    sees.lr = 0.02;
    sees.num_steps = 8;
    sees.present = one_is_missing_of(4);
    SCOPED_TRACE(sees.rule.type);
    EXPECT_LE(largest_difference(run_pipeline(sees), expected_trajectory(sees)), 1e-12);
    expect_same_where_streams_lag(sees, std::array{Where::kLagging});
  }
}

TEST(EdgeWeights, AreWhatGossipMixesWith) {
  for (const char* topology : {"ring", "complete"}) {
    for (const int n : {2, 3, 4}) {
      SCOPED_TRACE(concat(topology, ", ", n, " ranks"));
      Problem problem;
      problem.num_ranks = n;
      problem.topology = make_topology(topology, {.size = n, .node_size = n});
      const Trajectory plain = expected_trajectory(problem);
      problem.topology = with_edge_weights(problem.topology, [](const Edge& edge, std::int64_t k) {
        return adaptive_factor(1.0 / static_cast<double>(1 + k % 3))(edge, k);
      });
      const Trajectory expected = expected_trajectory(problem);
      EXPECT_LE(largest_difference(run_pipeline(problem), expected), 1e-12);
      EXPECT_GE(largest_difference(plain, expected), 1e-3);
    }
  }
}

/// Of several ranks whose gradients are missing at times, and not finite at others.
Problem shared_moments(const std::string& type, const char* algorithm, const char* options, int n) {
  Problem problem;
  problem.num_ranks = n;
  problem.same_start = true;
  problem.algorithm = algorithm;
  problem.algorithm_options = options;
  problem.topology = make_topology("base-k", {.size = n, .node_size = n});
  problem.rule = {.type = type, .momentum = 0.7, .beta2 = 0.8, .eps = 1e-3, .accum_iter = 2};
  if (type == "extra") problem.rule.inner = "adam";
  problem.lr = 0.02;
  problem.num_steps = 13;
  problem.gradients = {.nonfinite = NonFinite::kSkip};
  problem.breaks = [n](int rank, int step) { return step % 4 == 1 && rank == step % n; };
  problem.present = one_is_missing_of(4);
  return problem;
}

// Not among the variants, because most rules have no second moments.
void expect_shared_moments(std::initializer_list<const char*> types,
                           std::initializer_list<int> sizes) {
  struct Way {
    const char* algorithm;
    const char* plain;
    const char* moments;
    const char* codec = "fp32";
  };
  constexpr const char* kDiLoCo = "every: 2, kind: diloco, lr: 0.7, momentum: 0.5";
  constexpr const char* kNoLoCo = "every: 2, kind: noloco";
  constexpr const char* kInTurns = "every: 3, kind: noloco, streaming: true";
  const std::array ways = {Way{"gossip", "", "share_moments: 1"},
                           Way{"gossip", "", "share_moments: 5"},
                           Way{"gossip", "", "share_momentum: 3"},
                           Way{"gossip", "", "share_moments: 2, share_momentum: 4"},
                           Way{"outer", kDiLoCo, "share_moments: 2"},
                           Way{"outer", kDiLoCo, "share_momentum: 2"},
                           Way{"outer", kDiLoCo, "share_moments: 6, share_momentum: 6"},
                           Way{"outer", kDiLoCo, "share_moments: 2, share_momentum: 2", "bf16"},
                           Way{"outer", kNoLoCo, "share_moments: 6"},
                           Way{"outer", kNoLoCo, "share_momentum: 4"},
                           Way{"outer", kNoLoCo, "share_moments: 2, share_momentum: 4"},
                           Way{"outer", kNoLoCo, "share_moments: 2, share_momentum: 2", "bf16"},
                           Way{"outer", kInTurns, "share_moments: 3, share_momentum: 6"}};
  for (const char* type : types) {
    const bool is_adam = contains(type, "adam") || contains(type, "extra");
    for (const auto& [algorithm, plain, moments, codec] : ways) {
      if (is_adam != contains(moments, "share_moments")) continue;
      const std::string separator = *plain == 0 ? "" : ", ";
      const std::string options = concat(plain, separator, moments);
      for (const int n : sizes) {
        SCOPED_TRACE(concat(type, ", ", algorithm, " {", options, "}, ", codec, ", ", n, " ranks"));
        Problem problem = shared_moments(type, algorithm, options.c_str(), n);
        problem.codec = codec;
        const Trajectory expected = expected_trajectory(problem);
        EXPECT_LE(largest_difference(run_pipeline(problem), expected), 1e-12);
        const Trajectory found = run_pipeline(problem);
        problem.where = Where::kLagging;
        EXPECT_EQ(run_pipeline(problem), found);
        problem.algorithm_options = plain;
        if (n > 1) {
          EXPECT_GE(largest_difference(expected_trajectory(problem), expected), 1e-4);
        }
      }
    }
  }
}

TEST(SharedMoments, FollowTheRecursion) {
  // A rule with both moments, and one with a momentum.
  expect_shared_moments({"adamw", "sgd"}, {1, 3});
}
TEST(WideSharedMoments, FollowTheRecursion) {
  expect_shared_moments({"adamw", "accum_adam", "extra", "sgd", "lion"}, {1, 2, 3, 4, 5});
}

TEST(Outer, FollowsItsRecursionWhereErrorsDecay) {
  for (const char* plain :
       {"every: 2, kind: diloco, lr: 1, momentum: 0", "every: 2, kind: slowmo, late: 2",
        "every: 1, kind: noloco, rounds: all"}) {
    for (const int n : {2, 3}) {
      SCOPED_TRACE(concat(plain, ", ", n, " ranks"));
      Problem problem = shared_moments("sgd", "outer", plain, n);
      problem.codec = "bf16";
      const Trajectory whole = run_pipeline(problem);
      for (const char* decay : {", error_decay: 1", ", error_decay: 0.5", ", error_decay: 0"}) {
        problem.algorithm_options = concat(plain, decay);
        const Trajectory found = run_pipeline(problem);
        EXPECT_LE(largest_difference(found, expected_trajectory(problem)), 1e-12) << decay;
        if (contains(decay, ": 1")) {
          EXPECT_EQ(found, whole) << "the default";
        } else {
          EXPECT_GE(largest_difference(found, whole), 1e-6) << decay;
        }
      }
    }
  }
}

// Every average of models comes with one of second moments.
TEST(SharedMoments, SendAsManyBytesAsPlainModels) {
  const auto bytes_of = [](const Problem& problem) {
    double sent = 0.0;
    run_ranks(problem.num_ranks, [&](Communicator& communicator, const World& world) {
      ToyModel model = model_of(problem, communicator);
      for (int step = 0; step < 12; ++step) train_step(problem, model, world.rank, step);
      model.pipeline().drain();
      if (world.rank == 0) sent = model.pipeline().metrics().bytes_sent;
    });
    return sent;
  };
  for (const char* topology : {"one-peer-exp", "complete"}) {
    for (const char* rounds : {"all", "topology"}) {
      SCOPED_TRACE(concat(topology, ", ", rounds));
      Problem problem;
      problem.num_ranks = 4;
      problem.rule = {.type = "adamw"};
      problem.algorithm = "outer";
      problem.topology = make_topology(topology, {.size = 4, .node_size = 4});
      const std::string plain = concat("kind: diloco, every: 2, rounds: ", rounds);
      problem.algorithm_options = plain;
      const double models = bytes_of(problem);
      problem.algorithm_options = concat(plain, ", share_moments: 2");
      EXPECT_EQ(bytes_of(problem), 2 * models);
    }
  }
}

TEST(Outer, FollowsTheRecursionOnEveryUndirectedTopology) {
  int num_topologies = 0;
  for (const std::string& name : all_topologies()) {
    const gossamer::Setup setup{.algorithm = "outer",
                                .topology = name,
                                .num_ranks = 4,
                                .node_size = contains(name, "hierarchical") ? 2 : 4};
    if (!fits(setup) || setup.build()->directed()) continue;
    ++num_topologies;
    for (const char* kind : {"noloco", "gasloc", "diloco, rounds: topology"}) {
      SCOPED_TRACE(concat(name, ", ", kind));
      Problem problem;
      problem.num_ranks = setup.num_ranks;
      problem.node_size = setup.node_size;
      problem.algorithm = "outer";
      problem.algorithm_options =
          concat("every: 2, share_moments: 4, share_momentum: 4, kind: ", kind);
      problem.topology = setup.build();
      problem.rule = {.type = "adamw", .beta2 = 0.8, .eps = 1e-3};
      problem.lr = 0.02;
      EXPECT_LE(largest_difference(run_pipeline(problem), expected_trajectory(problem)), 1e-12);
    }
  }
  EXPECT_GE(num_topologies, 15);
}

TEST_P(EveryFurtherPolicy, FollowsTheRecursionWhereGradientsAreMissing) {
  Problem holes = problem();
  // Every rank has a pattern of its own. In some steps no rank has a gradient for parameter 1.
  holes.present = some_are_missing;
  // The count of updates matters to Adam's corrections and to cycles of accumulation.
  holes.rule = {.type = "accum_adam", .eps = 1e-3, .accum_iter = 2};
  holes.lr = 0.02;
  expect_recursion(holes);
}

TEST_P(EveryFurtherPolicy, FollowsTheRecursionWithEveryWayOfClipping) {
  for (const ClipMode mode : {ClipMode::kPerBucket, ClipMode::kGlobal, ClipMode::kDelayedGlobal}) {
    Problem clipped = problem();
    // A norm between those that occur, so that some gradients are clipped and some are not.
    clipped.gradients = {.clip_mode = mode, .clip_norm = 0.6};
    SCOPED_TRACE(clip_mode_names()[static_cast<std::size_t>(mode)]);
    // Bucket sizes matter under per_bucket, and depend on the type.
    const Trajectory expected = expected_trajectory(clipped);
    EXPECT_LE(largest_difference(run_pipeline(clipped), expected), 1e-12);
    clipped.dtype = DType::kFloat32;
    const Trajectory expected32 = expected_trajectory(clipped);
    if (!chooses()) {
      EXPECT_LE(largest_difference(run_pipeline(clipped), expected32), 1e-5);
    }
    expect_same_where_a_stream_lags(clipped, kMostPlaces);
    Problem free = problem();
    EXPECT_GE(largest_difference(expected_trajectory(free), expected), 1e-3);
  }
}

TEST_P(EveryPolicy, FollowsTheRecursionWhereStepsAreSkipped) {
  Problem broken = problem();
  broken.gradients = {
      .clip_mode = ClipMode::kDelayedGlobal, .clip_norm = 2.0, .nonfinite = NonFinite::kSkip};
  broken.gradient_scale = 0.5;
  broken.rule = {.type = "accum_adam", .eps = 1e-3, .accum_iter = 2};
  broken.lr = 0.02;
  broken.breaks = [n = broken.num_ranks](int rank, int step) {
    return step % 4 == 1 && rank == step % n;
  };
  expect_recursion(broken);
}

TEST_P(EveryFurtherPolicy, TrainsAModelInBFloat16LikeItsMasterCopy) {
  Problem rounded = problem();
  rounded.num_steps = 6;
  rounded.rounds_gradients = true;
  rounded.rule = {.type = "accum_adamw", .eps = 1e-3, .accum_iter = 3};
  rounded.lr = 0.02;
  rounded.gradients = {.clip_mode = ClipMode::kDelayedGlobal, .clip_norm = 0.6};
  rounded.present = one_is_missing_of(4);
  rounded.dtype = DType::kFloat32;
  const Trajectory expected = run_pipeline(rounded);
  rounded.dtype = DType::kBFloat16;
  EXPECT_EQ(run_pipeline(rounded), expected);
  expect_same_where_streams_lag(rounded, std::array{Where::kDevice});
}

TEST_P(EveryFurtherPolicy, RepeatsBitForBitWhateverTheBuckets) {
  Problem one = problem();
  one.dtype = DType::kFloat32;
  one.bucket_bytes = 1 << 20;
  Problem many = one;
  many.bucket_bytes = 1;
  many.shuffles = false;
  const Trajectory expected = run_pipeline(one);
  EXPECT_EQ(run_pipeline(one), expected);
  EXPECT_EQ(run_pipeline(many), expected);
}

}  // namespace
}  // namespace gossamer
