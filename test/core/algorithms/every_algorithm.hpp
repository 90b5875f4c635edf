#pragma once
// The setups of the tests that compare every algorithm with the recursion: an algorithm with its
// options, a topology, a world size and a codec. EveryAlgorithm is the base of their suites.

#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/expected.hpp"
#include "test/core/test_topologies.hpp"
#include "test/support/sanitized.hpp"
#include "test/topology/irregular.hpp"
#include "test/topology/worlds.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
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
#include "topology/registry.hpp"

namespace gossamer {

/// Topologies that need options.
inline constexpr std::array kMixtures = {
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
  [[nodiscard]] bool has_even_ranks() const { return num_ranks % 2 == 0; }
  [[nodiscard]] std::shared_ptr<const Topology> build() const {
    if (topology == "random-groups") return std::make_shared<RandomGroups>(num_ranks, 11);
    if (topology == "irregular") return std::make_shared<IrregularDigraph>(num_ranks);
    for (const auto& [name, yaml] : kMixtures) {
      if (name == topology) return read_topology(Options::parse(yaml), world());
    }
    return make_topology(topology, world());
  }
};

inline void PrintTo(const Setup& setup, std::ostream* out) {
  *out << concat(setup.algorithm, " {", setup.options, "} on ", setup.topology, ", ",
                 setup.num_ranks, " ranks, ", setup.node_size, " per node, ", setup.codec);
}

inline std::string setup_name(const testing::TestParamInfo<Setup>& info) {
  std::string name = concat(info.param.algorithm, "_", info.param.topology, "_n",
                            info.param.num_ranks, "_local", info.param.node_size);
  if (!info.param.options.empty()) name += concat("_", info.param.options);
  if (info.param.codec != "fp32") name += concat("_", info.param.codec);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

inline std::vector<std::string> all_topologies() {
  std::vector<std::string> names = {"random-groups", "irregular"};
  for (const auto& [name, yaml] : kMixtures) names.emplace_back(name);
  for (const std::string_view name : topologies_to_test()) names.emplace_back(name);
  return names;
}

inline bool fits(const Setup& setup) {
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.name == setup.topology) return entry.fits(setup.world());
  }
  return true;
}

/// One topology for each kind of round.
inline constexpr std::array<std::string_view, 9> kKinds = {
    "ring",      "complete",      "one-peer-exp",         "static-ring", "rare",
    "irregular", "random-groups", "alternating-exp-ring", "hierarchical"};

/// Every algorithm on topologies that it is for, and gossip on every topology.
inline std::vector<Setup> all_setups() {
  std::vector<Setup> setups;
  for (int n = 1; n <= 8; ++n) {
    for (const auto& [algorithm, options] : algorithm_variants()) {
      // gossip_setups() has more topologies.
      if (std::string_view(algorithm) == "gossip" && *options == 0) continue;
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

/// Whether a setup is among those that stand for all: one rank, three, four, and six in nodes of
/// two and of three, with one topology for each kind of round. The other setups are the suites
/// called Wide. Two ranks add no case. The thread sanitizer leaves out all numbers but four and
/// six: with four, every kind of round has several peers.
inline bool stands_for_all(const Setup& setup) {
  if (setup.num_ranks == 6 ? setup.node_size == 1 || setup.node_size == 6
                           : setup.num_ranks > 4 || setup.num_ranks == 2) {
    return false;
  }
  if (kThreadSanitized && setup.num_ranks < 4) return false;
  if (setup.algorithm != "gossip") return true;
  return setup.num_ranks > 1 && std::ranges::find(kKinds, setup.topology) != kKinds.end();
}

/// Whether a setup is among those on which rules and gradient policies are tested. They meet the
/// algorithm at one place, the sweep, and its topology only through the number of inboxes and
/// their weights. Under sanitizers four ranks alone: they have all numbers of inboxes.
inline bool tests_policies(const Setup& setup) {
  if (!stands_for_all(setup) || setup.num_ranks == 3) return false;
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

inline std::vector<Setup> gossip_setups() {
  return those(all_setups(), [](const Setup& setup) { return setup.algorithm == "gossip"; });
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
    expect_same_where_a_stream_lags(problem, kMostPlaces);
  }

  /// True: the algorithm chooses among elements. In float32 the choice between nearly equal
  /// elements may be another one than in double.
  static bool chooses() {
    return GetParam().algorithm == "choco" && !GetParam().options.starts_with("fraction: 1,");
  }

  static constexpr int kFewSteps = 6;
  static constexpr std::array kMostPlaces = {Where::kLagging, Where::kDevice, Where::kNccl};

  /// Expects the same trajectory on a stream that lags behind as on a stream that does not. The
  /// setups take turns at the places.
  static void expect_same_where_a_stream_lags(const Problem& problem, std::span<const Where> places,
                                              int num_steps = kFewSteps) {
    std::vector<Where> usable = usable_of(problem, places);
    if (!usable.empty()) usable = {usable[sum_of_letters() % usable.size()]};
    expect_same_at(problem, usable, num_steps);
  }
  /// The same at all places; under sanitizers at one.
  static void expect_same_where_streams_lag(const Problem& problem, std::span<const Where> places,
                                            int num_steps = kFewSteps) {
    if (kSanitized) return expect_same_where_a_stream_lags(problem, places, num_steps);
    expect_same_at(problem, usable_of(problem, places), num_steps);
  }

  static std::vector<Where> usable_of(const Problem& problem, std::span<const Where> places) {
    std::vector<Where> usable;
    for (const Where where : places) {
      if (runs_at(problem.algorithm, where, problem.algorithm_options)) usable.push_back(where);
    }
    return usable;
  }

  static void expect_same_at(Problem problem, const std::vector<Where>& usable, int num_steps) {
    // Every rank has four threads on these streams.
    if (problem.num_ranks > 4) return;
    problem.num_steps = num_steps;
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

}  // namespace gossamer
