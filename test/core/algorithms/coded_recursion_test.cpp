// Tests every algorithm with every codec against the recursion, and against plain mixing.

#include "test/base/thrown.hpp"
#include "test/core/algorithms/every_algorithm.hpp"
#include "test/support/sanitized.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/exchange/grid_lane.hpp"

namespace gossamer {
namespace {

/// Whether the ranks send blocks to the peers of a topology. Else they sum them.
bool mixes(const Setup& setup) {
  return AlgorithmChoice(setup.algorithm, Options::parse(setup.options)).needs_topology();
}

/// The setups of algorithms and topologies that take a codec.
std::vector<Setup> coded_setups() {
  std::vector<Setup> setups;
  for (Setup setup : all_setups()) {
    // Pairs, groups of three that exchange, groups of four that sum, and three nodes of two; larger
    // worlds add no new case.
    const bool nodes = setup.num_ranks == 6 && setup.node_size == 2;
    if (setup.num_ranks < 2 || (setup.num_ranks > 4 && !nodes)) continue;
    if (kSanitized && setup.num_ranks == 3 && setup.topology != "ring") continue;
    for (const CodecEntry& entry : codec_table()) {
      if (entry.codec == nullptr || entry.codec().needs_grid() || entry.codec().is_sparse()) {
        continue;
      }
      // A codec does not see topologies, so one of them runs on all.
      if (entry.name != "bf16" && setup.topology != "ring") continue;
      // Sanitizers see one with an even number of ranks, the other one with an odd number.
      if (kSanitized && setup.topology == "ring" &&
          setup.has_even_ranks() != (entry.name == "bf16")) {
        continue;
      }
      const AlgorithmChoice algorithm(setup.algorithm, Options::parse(setup.options));
      const auto topology = setup.build();
      if (!algorithm.why_not({.topology = topology.get(), .codec = &entry.codec()}).empty()) {
        continue;
      }
      setup.codec = entry.name;
      setups.push_back(setup);
    }
  }
  return setups;
}

/// Whether any message of the rounds is encoded: those of groups of more than three are not.
bool encodes(const Topology& topology, int num_rounds) {
  for (int k = 0; k + 1 < num_rounds; ++k) {
    const Round round = topology.round(k);
    const bool small = std::ranges::any_of(round.edges, [](const Edge& edge) {
      return edge.ranks.size() == 2 || edge.ranks.size() == 3;
    });
    if (small || !round.arcs.empty()) return true;
  }
  return false;
}

class EveryCodedAlgorithm : public EveryAlgorithm {};
INSTANTIATE_TEST_SUITE_P(Setups, EveryCodedAlgorithm,
                         testing::ValuesIn(those(coded_setups(), stands_for_all)), setup_name);
INSTANTIATE_TEST_SUITE_P(Wide, EveryCodedAlgorithm,
                         testing::ValuesIn(those(coded_setups(), stands_for_all, false)),
                         setup_name);

TEST_P(EveryCodedAlgorithm, FollowsTheRecursion) {
  Problem coded = problem();
  EXPECT_LE(largest_difference(run_pipeline(coded), expected_trajectory(coded)), 1e-12);
  coded.rule = {.type = "accum_adamw", .eps = 1e-3, .accum_iter = 3};
  coded.lr = 0.02;
  coded.present = one_is_missing_of(4);
  coded.gradients = {.clip_mode = ClipMode::kDelayedGlobal, .clip_norm = 0.6};
  EXPECT_LE(largest_difference(run_pipeline(coded), expected_trajectory(coded)), 1e-12);
  Problem plain = coded;
  plain.codec = "fp32";
  EXPECT_EQ(largest_difference(expected_trajectory(plain), expected_trajectory(coded)) > 1e-5,
            encodes(*coded.topology, coded.num_steps));
}

TEST_P(EveryCodedAlgorithm, FollowsTheRecursionWithRulesThatSeeMixingAndSkippedSteps) {
  for (const char* rule : {"qg_sgd", "extra"}) {
    Problem sees = problem();
    if (!shows_mixing(sees.algorithm, sees.algorithm_options)) continue;
    sees.rule = {.type = rule, .momentum = 0.9};
    if (sees.rule.type == "extra") sees.rule.inner = "sgd";
    sees.lr = 0.02;
    sees.num_steps = 8;
    sees.gradients = {.nonfinite = NonFinite::kSkip};
    sees.breaks = [n = sees.num_ranks](int rank, int step) {
      return step % 4 == 1 && rank == step % n;
    };
    SCOPED_TRACE(rule);
    EXPECT_LE(largest_difference(run_pipeline(sees), expected_trajectory(sees)), 1e-12);
  }
}

void expect_the_same_mean(Problem still) {
  still.dtype = DType::kFloat32;
  still.rule = {.type = "sgd"};
  still.lr = 0.0;
  still.weight_decay = 0.0;
  const Trajectory trajectory = run_pipeline(still);
  const auto mean = [](const std::vector<std::vector<double>>& ranks, std::size_t e) {
    double sum = 0.0;
    for (const auto& x : ranks) sum += x[e];
    return sum / static_cast<double>(ranks.size());
  };
  for (std::size_t e = 0; e < still.num_values(); ++e) {
    // Relative to the size of the parameters, which is 1.
    EXPECT_NEAR(mean(trajectory.back(), e), mean(trajectory.front(), e), 1e-6) << e;
  }
}

/// Those that mix parameters.
std::vector<Setup> coded_mixing_setups() {
  std::vector<Setup> setups = coded_setups();
  std::erase_if(setups, [](const Setup& setup) { return !mixes(setup); });
  return setups;
}

class EveryCodedMixing : public EveryAlgorithm {};
INSTANTIATE_TEST_SUITE_P(Setups, EveryCodedMixing,
                         testing::ValuesIn(those(coded_mixing_setups(), stands_for_all)),
                         setup_name);
INSTANTIATE_TEST_SUITE_P(Wide, EveryCodedMixing,
                         testing::ValuesIn(those(coded_mixing_setups(), stands_for_all, false)),
                         setup_name);

TEST_P(EveryCodedMixing, KeepsTheMean) { expect_the_same_mean(problem()); }

TEST_P(EveryCodedAlgorithm, GivesTheSameBitsWhereverStreamsLag) {
  Problem coded = problem();
  coded.dtype = DType::kFloat32;
  expect_same_where_streams_lag(coded, kLaggingPlaces);
}

TEST_P(EveryCodedAlgorithm, GivesTheSameBitsWhateverTheBuckets) {
  // Buckets decide on the rank that keeps the error of a sum.
  if (AlgorithmChoice(GetParam().algorithm).entry().feeds_errors_back && !mixes(GetParam())) return;
  Problem coded = problem();
  coded.dtype = DType::kFloat32;
  coded.bucket_bytes = 1;
  const Trajectory expected = run_pipeline(coded);
  coded.bucket_bytes = 1 << 20;
  coded.num_threads = 2;
  EXPECT_EQ(run_pipeline(coded), expected);
  // The model's own copy in bfloat16 does not matter.
  coded.rounds_gradients = true;
  const Trajectory rounded = run_pipeline(coded);
  coded.dtype = DType::kBFloat16;
  EXPECT_EQ(run_pipeline(coded), rounded);
}

/// The setups for codecs that need a grid, on one topology for each kind of round.
std::vector<Setup> grid_setups() {
  std::vector<Setup> setups;
  for (Setup setup : all_setups()) {
    const bool nodes = setup.topology == "hierarchical" && setup.num_ranks == 6;
    const bool pairs =
        setup.topology == "ring" || setup.topology == "one-peer-exp" || setup.topology == "rare";
    const bool groups = setup.topology == "complete" || setup.topology == "static-ring";
    if (setup.num_ranks < 2 || (!nodes && (setup.num_ranks > 4 || (!pairs && !groups)))) continue;
    // Sums need no grid; coded_sum_test.cpp has them.
    if (!AlgorithmChoice(setup.algorithm).entry().takes_codec || !mixes(setup)) continue;
    for (const CodecEntry& entry : codec_table()) {
      if (entry.codec == nullptr || !entry.codec().needs_grid()) continue;
      // Sanitizers see one with an even number of ranks, the other one with an odd number. Both
      // have the same threads.
      if (kSanitized && setup.has_even_ranks() != (entry.name == "int8")) continue;
      if (kThreadSanitized && entry.name != "int8") continue;
      setup.codec = entry.name;
      setups.push_back(setup);
    }
  }
  return setups;
}

class EveryAlgorithmOnAGrid : public EveryAlgorithm {
 protected:
  /// Long enough for a window with a grid that was measured in another window with a grid.
  static Problem problem() {
    Problem problem = EveryAlgorithm::problem();
    problem.num_steps = 5 * static_cast<int>(GridLane::kWindow);
    return problem;
  }
};
INSTANTIATE_TEST_SUITE_P(Setups, EveryAlgorithmOnAGrid,
                         testing::ValuesIn(those(grid_setups(), stands_for_all)), setup_name);

TEST_P(EveryAlgorithmOnAGrid, MovesTheMeanAsPlainMixingDoes) {
  // The gradients are linear in the parameters and have the same slope on all ranks. So the mean of
  // all ranks does not depend on mixing, as long as mixing keeps it.
  Problem coded = problem();
  Problem plain = coded;
  plain.codec = "fp32";
  const auto mean_of = [](const std::vector<std::vector<double>>& ranks) {
    std::vector<double> mean(ranks.front().size());
    for (const auto& x : ranks) {
      for (std::size_t e = 0; e < mean.size(); ++e) {
        mean[e] += x[e] / static_cast<double>(ranks.size());
      }
    }
    return mean;
  };
  const std::vector<double> found = mean_of(run_pipeline(coded).back());
  const std::vector<double> expected = mean_of(run_pipeline(plain).back());
  for (std::size_t e = 0; e < found.size(); ++e) EXPECT_NEAR(found[e], expected[e], 1e-12) << e;
}

TEST_P(EveryAlgorithmOnAGrid, StaysNearPlainMixing) {
  // GASLoC on a ring of three moves away from every start, with and without a codec. Trackers add
  // up what 4 bits round.
  const bool adds_up = GetParam().algorithm.ends_with("tracking") && GetParam().codec == "int4";
  if (adds_up || contains(GetParam().options, "gasloc")) return;
  Problem coded = problem();
  Problem plain = coded;
  plain.codec = "fp32";
  const double difference = largest_difference(run_pipeline(coded), run_pipeline(plain));
  // The ranks are up to 2 apart. Sums in nodes are sent as they are.
  EXPECT_LT(difference, GetParam().codec == "int8" ? 0.1 : 0.8);
  EXPECT_EQ(difference > 1e-5, coded.topology->round(0).node_size == 1);
}

TEST_P(EveryAlgorithmOnAGrid, GivesTheSameBitsWhereverStreamsLag) {
  Problem coded = problem();
  coded.dtype = DType::kFloat32;
  expect_same_where_streams_lag(coded, kLaggingPlaces, coded.num_steps);
  const Trajectory expected = run_pipeline(coded);
  coded.num_threads = 2;
  EXPECT_EQ(run_pipeline(coded), expected);
}

}  // namespace
}  // namespace gossamer
