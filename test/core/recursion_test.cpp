// Tests every algorithm on every topology and world size against the recursion in double.

#include "test/core/algorithm_variants.hpp"
#include "test/core/expected.hpp"
#include "test/core/test_topologies.hpp"
#include "test/sanitized.hpp"
#include "test/topology/irregular.hpp"

#include <array>
#include <cctype>
#include <memory>
#include <numeric>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "core/lanes/grid_lane.hpp"
#include "topology/edge_weights.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

/// Topologies that need options.
constexpr std::array kMixtures = {
    std::pair{"base_3", "name: base-k, k: 3"},
    std::pair{"hierarchical_complete", "name: hierarchical, leaders: complete, leaders_every: 2"},
    std::pair{"hierarchical_exp", "name: hierarchical, leaders: static-exp"},
    std::pair{"hierarchical_static_ring", "name: hierarchical, leaders: static-ring"},
    std::pair{"alternating", "alternate: [complete, static-exp, {name: base-k, k: 2}]"},
    std::pair{"phased", "phases: [{until: 3, topology: complete}, {topology: static-ring}]"},
    std::pair{"rare", "every: {base: ring, period: 3}"},
};

struct Setup {
  std::string algorithm;
  std::string topology;
  int num_ranks = 1;
  int node_size = 1;
  std::string options = {};
  std::string codec = "fp32";

  [[nodiscard]] World world() const { return {.size = num_ranks, .node_size = node_size}; }
  [[nodiscard]] std::shared_ptr<const Topology> build() const {
    if (topology == "random-groups") return std::make_shared<RandomGroups>(num_ranks, 11);
    if (topology == "irregular") return std::make_shared<IrregularDigraph>(num_ranks);
    for (const auto& [name, yaml] : kMixtures) {
      if (name == topology) return read_topology(Options::parse(yaml), world());
    }
    return make_topology(topology, world());
  }
};

void PrintTo(const Setup& setup, std::ostream* out) {
  *out << concat(setup.algorithm, " {", setup.options, "} on ", setup.topology, ", ",
                 setup.num_ranks, " ranks, ", setup.node_size, " per node, ", setup.codec);
}

std::string setup_name(const testing::TestParamInfo<Setup>& info) {
  std::string name = concat(info.param.algorithm, "_", info.param.topology, "_n",
                            info.param.num_ranks, "_local", info.param.node_size);
  if (!info.param.options.empty()) name += concat("_", info.param.options);
  if (info.param.codec != "fp32") name += concat("_", info.param.codec);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

bool looks_at_nodes(std::string_view topology) {
  return topology == "alternating-exp-ring" || topology.starts_with("hierarchical");
}

std::vector<std::string> all_topologies() {
  std::vector<std::string> names = {"random-groups", "irregular"};
  for (const auto& [name, yaml] : kMixtures) names.emplace_back(name);
  for (const TopologyEntry& entry : topology_table()) {
    if (!entry.needs_options) names.emplace_back(entry.name);
  }
  return names;
}

bool fits(const Setup& setup) {
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.name == setup.topology) return entry.fits(setup.world());
  }
  return true;
}

/// One topology for each kind of round.
constexpr std::array<std::string_view, 9> kKinds = {
    "ring",      "complete",      "one-peer-exp",         "static-ring", "rare",
    "irregular", "random-groups", "alternating-exp-ring", "hierarchical"};

/// Every algorithm on topologies that it is for, and gossip on every topology.
std::vector<Setup> all_setups() {
  std::vector<Setup> setups;
  for (int n = 1; n <= 8; ++n) {
    for (const auto& [algorithm, options] : algorithm_variants()) {
      if (std::string_view(algorithm) == "gossip") continue;
      setups.push_back({algorithm, topology_for(algorithm, "ring"), n, n, options});
      if (std::string_view(algorithm) == "choco") {
        setups.push_back({algorithm, "complete", n, n, options});
      }
      if (std::string_view(algorithm) == "relay") {
        setups.push_back({algorithm, "chain", n, n, options});
      }
      if (std::string_view(algorithm) == "node_gossip") {
        for (const int local : {2, 3}) {
          if (n % local == 0 && local < n)
            setups.push_back({algorithm, "hierarchical", n, local, options});
        }
        if (n == 6) setups.push_back({algorithm, "hierarchical_exp", n, 2, options});
      }
      if (std::string_view(algorithm) != "gradient_tracking") continue;
      setups.push_back({algorithm, "complete", n, n, options});
      setups.push_back({algorithm, "static-ring", n, n, options});
      if (n % 2 == 0) setups.push_back({algorithm, "hierarchical", n, 2, options});
    }
    for (const std::string& topology : all_topologies()) {
      for (int local = 1; local <= n; ++local) {
        if (n % local != 0 || (!looks_at_nodes(topology) && local != n)) continue;
        const Setup setup{"gossip", topology, n, local};
        if (fits(setup)) setups.push_back(setup);
      }
    }
  }
  return setups;
}

/// Whether a setup is among those that stand for all: one rank, two, three, four, and six in nodes
/// of two and of three, with one topology for each kind of round. The other setups are the suites
/// called Wide. The sanitizers leave out two ranks, which add no case.
bool stands_for_all(const Setup& setup) {
  if (setup.num_ranks == 6 ? setup.node_size == 1 || setup.node_size == 6
                           : setup.num_ranks > 4 || (kSanitized && setup.num_ranks == 2)) {
    return false;
  }
  if (setup.algorithm != "gossip") return true;
  return setup.num_ranks > 1 && std::ranges::find(kKinds, setup.topology) != kKinds.end();
}

/// Whether a setup is among those on which rules and gradient policies are tested. They meet the
/// algorithm at one place, the sweep, and its topology only through the number of inboxes and
/// their weights. Under sanitizers four ranks alone: they have all numbers of inboxes.
bool tests_policies(const Setup& setup) {
  if (!stands_for_all(setup) || setup.num_ranks == 2 || setup.num_ranks == 3) return false;
  if (kSanitized && setup.num_ranks != 4) return false;
  constexpr std::array<std::string_view, 4> kInboxes = {"ring", "complete", "irregular",
                                                        "hierarchical"};
  return setup.algorithm != "gossip" ||
         std::ranges::find(kInboxes, setup.topology) != kInboxes.end();
}

/// The setups of `setups` for which `test` gives `wanted`.
template <class Test>
std::vector<Setup> those(std::vector<Setup> setups, const Test& test, bool wanted = true) {
  std::erase_if(setups, [&](const Setup& setup) { return test(setup) != wanted; });
  return setups;
}

std::vector<Setup> gossip_setups() {
  return those(all_setups(), [](const Setup& setup) { return setup.algorithm == "gossip"; });
}

TEST(Variants, AreOfAlgorithmsInStep) {
  const std::vector<std::string> names = algorithms_in_step();
  for (const auto& [name, options] : kOptionVariants) {
    EXPECT_TRUE(std::ranges::find(names, name) != names.end()) << name;
  }
}

class EveryAlgorithm : public testing::TestWithParam<Setup> {
 protected:
  static Problem problem() {
    return {.num_ranks = GetParam().num_ranks,
            .node_size = GetParam().node_size,
            .algorithm = GetParam().algorithm,
            .algorithm_options = GetParam().options,
            .topology = GetParam().build(),
            .codec = GetParam().codec,
            .same_start =
                AlgorithmChoice(GetParam().algorithm).entry().topologies == TopologyKind::kNodes};
  }

  static void expect_recursion(Problem problem) {
    const Trajectory expected = expected_trajectory(problem);
    problem.dtype = DType::kFloat64;
    EXPECT_LE(largest_difference(run_pipeline(problem), expected), 1e-12);
    problem.dtype = DType::kFloat32;
    if (!chooses()) {
      EXPECT_LE(largest_difference(run_pipeline(problem), expected), 1e-5);
    }
    expect_same_where_streams_lag(problem, kMostPlaces);
  }

  /// True: the algorithm chooses among elements. In float32 the choice between nearly equal
  /// elements may be another one than in double.
  static bool chooses() {
    return GetParam().algorithm == "choco" && !GetParam().options.starts_with("fraction: 1,");
  }

  static constexpr std::array kMostPlaces = {Where::kLagging, Where::kDevice, Where::kNccl};

  /// Expects the same trajectory on streams that lag behind as on a stream that does not.
  static void expect_same_where_streams_lag(Problem problem, std::span<const Where> places) {
    // Every rank has four threads on these streams.
    if (problem.num_ranks > 4) return;
    problem.num_steps = 6;
    std::vector<Where> usable;
    for (const Where where : places) {
      if (runs_at(problem.algorithm, where, problem.algorithm_options)) usable.push_back(where);
    }
    // Under sanitizers every setup is at one of the places.
    if (kSanitized && !usable.empty()) usable = {usable[sum_of_letters() % usable.size()]};
    const Trajectory expected = run_pipeline(problem);
    for (const Where where : usable) {
      problem.where = where;
      EXPECT_EQ(run_pipeline(problem), expected) << static_cast<int>(where);
    }
  }

  /// A number that spreads the setups.
  static std::size_t sum_of_letters() {
    const std::string name = setup_name({GetParam(), 0});
    return std::accumulate(name.begin(), name.end(), std::size_t{0}, [](std::size_t sum, char c) {
      return sum + static_cast<unsigned char>(c);
    });
  }
};
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
  for (const char* inner : {"", "sgd", "accum_adamw"}) {
    Problem sees = problem();
    sees.rule.type = *inner == 0 ? "qg_sgd" : "extra";
    sees.rule.inner = inner;
    sees.rule.momentum = 0.9;
    sees.rule.eps = 1e-3;
    sees.rule.accum_iter = 3;
    sees.lr = 0.02;
    sees.num_steps = 8;
    sees.present = [](int rank, int step, std::int64_t parameter) {
      return (rank + 2 * step + 3 * static_cast<int>(parameter)) % 4 != 0;
    };
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

// Not among the variants, because most rules have no second moments.
TEST(SharedMoments, FollowTheRecursion) {
  for (const char* type : {"adamw", "accum_adam", "extra"}) {
    for (const char* options : {"share_moments: 1", "share_moments: 5"}) {
      for (int n = 1; n <= (kSanitized ? 3 : 5); ++n) {
        SCOPED_TRACE(concat(type, ", ", options, ", ", n, " ranks"));
        Problem problem;
        problem.num_ranks = n;
        problem.algorithm_options = options;
        problem.topology = make_topology("ring", {.size = n, .node_size = n});
        problem.rule = {.type = type, .beta2 = 0.8, .eps = 1e-3, .accum_iter = 2};
        if (problem.rule.type == "extra") problem.rule.inner = "adam";
        problem.lr = 0.02;
        problem.gradients = {.nonfinite = NonFinite::kSkip};
        problem.breaks = [n](int rank, int step) { return step % 4 == 1 && rank == step % n; };
        problem.present = [](int rank, int step, std::int64_t parameter) {
          return (rank + 2 * step + 3 * static_cast<int>(parameter)) % 4 != 0;
        };
        const Trajectory expected = expected_trajectory(problem);
        EXPECT_LE(largest_difference(run_pipeline(problem), expected), 1e-12);
        const Trajectory found = run_pipeline(problem);
        problem.where = Where::kLagging;
        EXPECT_EQ(run_pipeline(problem), found);
        problem.algorithm_options = "";
        if (n > 1) {
          EXPECT_GE(largest_difference(expected_trajectory(problem), expected), 1e-4);
        }
      }
    }
  }
}

TEST_P(EveryFurtherPolicy, FollowsTheRecursionWhereGradientsAreMissing) {
  Problem holes = problem();
  // Every rank has a pattern of its own. In some steps no rank has a gradient for parameter 1.
  holes.present = [](int rank, int step, std::int64_t parameter) {
    if (parameter == 1 && step % 3 == 0) return false;
    return (rank + 2 * step + 3 * static_cast<int>(parameter)) % 4 != 0;
  };
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
    expect_same_where_streams_lag(clipped, kMostPlaces);
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
  rounded.present = [](int rank, int step, std::int64_t parameter) {
    return (rank + 2 * step + 3 * static_cast<int>(parameter)) % 4 != 0;
  };
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
      if (entry.codec == nullptr || entry.codec().needs_grid()) continue;
      // A codec does not see topologies, so one of them runs on all.
      if (entry.name != "bf16" && setup.topology != "ring") continue;
      const AlgorithmChoice algorithm(setup.algorithm);
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
  coded.present = [](int rank, int step, std::int64_t parameter) {
    return (rank + 2 * step + 3 * static_cast<int>(parameter)) % 4 != 0;
  };
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
  std::erase_if(setups, [](const Setup& setup) { return setup.algorithm == "allreduce"; });
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

TEST_P(EveryCodedAlgorithm, GivesTheSameBitsWhereverStreamsLagAndWhateverTheBuckets) {
  Problem coded = problem();
  coded.dtype = DType::kFloat32;
  expect_same_where_streams_lag(coded, std::array{Where::kLagging, Where::kRelayed});
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
    if (!AlgorithmChoice(setup.algorithm).entry().takes_codec) continue;
    // Sums need no grid; coded_sum_test.cpp has them.
    if (setup.algorithm == "allreduce") continue;
    setup.codec = "int8";
    setups.push_back(setup);
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
  Problem coded = problem();
  Problem plain = coded;
  plain.codec = "fp32";
  const double difference = largest_difference(run_pipeline(coded), run_pipeline(plain));
  // The ranks are up to 2 apart. Sums in nodes are sent as they are.
  EXPECT_LT(difference, 0.1);
  EXPECT_EQ(difference > 1e-5, coded.topology->round(0).node_size == 1);
}

TEST_P(EveryAlgorithmOnAGrid, GivesTheSameBitsWhereverStreamsLag) {
  Problem coded = problem();
  coded.dtype = DType::kFloat32;
  expect_same_where_streams_lag(coded, std::array{Where::kLagging, Where::kRelayed});
  const Trajectory expected = run_pipeline(coded);
  coded.num_threads = 2;
  EXPECT_EQ(run_pipeline(coded), expected);
}

}  // namespace
}  // namespace gossamer
