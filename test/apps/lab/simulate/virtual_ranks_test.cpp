// Virtual ranks against whole matrices and against the real pipeline.

#include "apps/lab/simulate/virtual_ranks.hpp"

#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/problem.hpp"
#include "test/support/sanitized.hpp"
#include "test/topology/irregular.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "core/exchange/grid_lane.hpp"
#include "topology/mixing.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

struct SimulatedWorld {
  std::string yaml;
  World world;

  [[nodiscard]] std::shared_ptr<const Topology> build() const {
    if (yaml == "irregular") return std::make_shared<IrregularDigraph>(world.size);
    return read_topology(Options::parse(yaml), world);
  }
};

std::vector<SimulatedWorld> worlds() {
  std::vector<SimulatedWorld> all = {
      {"irregular", {.size = 7}},
      {"name: base-k, k: 2", {.size = 11}},
      {"name: base-k, k: 3", {.size = 14}},
      {"name: hierarchical, leaders: ring", {.size = 6, .node_size = 2}},
      {"name: hierarchical, leaders: complete, leaders_every: 2", {.size = 12, .node_size = 3}},
      {"name: hierarchical, leaders: static-exp", {.size = 10, .node_size = 2}},
      {"alternate: [complete, static-exp, random-matching]", {.size = 9}},
      {"phases: [{until: 3, topology: complete}, {topology: static-ring}]", {.size = 5}},
  };
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.needs_options) continue;
    for (const int size : {1, 2, 8}) {
      all.push_back({concat("name: ", entry.name), {.size = size, .node_size = 1}});
    }
  }
  return all;
}

constexpr std::int64_t kDim = 5;

double start(int rank, std::int64_t d) {
  return std::sin(1.0 + 3.0 * rank + 0.7 * static_cast<double>(d));
}

void fill(VirtualRanks& ranks, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    for (std::int64_t d = 0; d < kDim; ++d) {
      ranks.parameters(rank)[static_cast<std::size_t>(d)] = start(rank, d);
    }
  }
}

TEST(VirtualRanks, MixAsTheMatricesSay) {
  for (const SimulatedWorld& c : worlds()) {
    const auto topology = c.build();
    VirtualRanks ranks({.topology = topology, .world_size = c.world.size, .dim = kDim});
    fill(ranks, c.world.size);
    RankRows expected(c.world.size, kDim);
    for (int rank = 0; rank < c.world.size; ++rank) {
      for (std::int64_t d = 0; d < kDim; ++d) expected(rank, d) = start(rank, d);
    }
    PushSum push_sum(c.world.size);
    for (std::int64_t k = 0; k < 20; ++k) {
      Round round = topology->round(k);
      if (topology->directed()) round = push_sum.advance(round);
      MixingOperator(round).apply(expected);
      ranks.mix();
      for (int rank = 0; rank < c.world.size; ++rank) {
        for (std::int64_t d = 0; d < kDim; ++d) {
          ASSERT_NEAR(ranks.parameters(rank)[static_cast<std::size_t>(d)], expected(rank, d), 1e-13)
              << c.yaml << ", round " << k << ", rank " << rank;
        }
      }
    }
  }
}

TEST(VirtualRanks, MixByThemselvesAsInTraining) {
  constexpr int kRounds = 20;
  for (const SimulatedWorld& c : worlds()) {
    const auto topology = c.build();
    VirtualRanks mixing(
        {.topology = topology, .world_size = c.world.size, .dim = kDim, .num_threads = 2});
    // Steps without updates. A step mixes in what the step before has sent.
    VirtualRanks training({.topology = topology,
                           .world_size = c.world.size,
                           .dim = kDim,
                           .optimizer = make_optimizer("sgd", Options()),
                           .schedule = std::make_shared<FixedSchedule>(0.0)});
    for (VirtualRanks* ranks : {&mixing, &training}) fill(*ranks, c.world.size);
    for (int k = 0; k < kRounds; ++k) mixing.mix();
    for (int k = 0; k <= kRounds; ++k) {
      training.step(
          [](int, std::span<const double>, std::span<double> g) { std::ranges::fill(g, 0.0); });
    }
    for (int rank = 0; rank < c.world.size; ++rank) {
      EXPECT_TRUE(std::ranges::equal(mixing.parameters(rank), training.parameters(rank)))
          << c.yaml << ", rank " << rank;
    }
  }
}

/// Compares every step of the virtual ranks with that of a pipeline of threads, with its exchanges,
/// buckets and hooks: the same operations in the same order give the same bits.
void expect_the_pipelines_bits(const Problem& problem, const std::string& where) {
  const Trajectory real = run_pipeline(problem);
  VirtualRanks ranks(
      {.topology = problem.topology,
       .world_size = problem.num_ranks,
       .dim = static_cast<std::int64_t>(problem.num_values()),
       .algorithm = {problem.algorithm, Options::parse(problem.algorithm_options)},
       .codec = find_codec(problem.codec),
       .optimizer = make_optimizer(problem.rule.type, Options::parse(problem.rule.yaml())),
       .schedule = std::make_shared<FixedSchedule>(problem.lr),
       .weight_decay = problem.weight_decay,
       .num_threads = 2});
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    std::ranges::copy(start_of(problem, rank), ranks.parameters(rank).begin());
  }
  for (int step = 0; step < problem.num_steps; ++step) {
    ranks.step([step](int rank, std::span<const double> x, std::span<double> g) {
      std::ranges::copy(gradient_at({x.begin(), x.end()}, rank, step), g.begin());
    });
    for (int rank = 0; rank < problem.num_ranks; ++rank) {
      const auto& wanted = real[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)];
      const std::span<double> x = ranks.parameters(rank);
      ASSERT_EQ(std::vector<double>(x.begin(), x.end()), wanted)
          << where << ", " << problem.num_ranks << " ranks, step " << step << ", rank " << rank;
    }
  }
}

Problem problem_on(const SimulatedWorld& world) {
  Problem problem;
  problem.num_ranks = world.world.size;
  problem.node_size = world.world.node_size;
  problem.topology = world.build();
  problem.num_steps = 10;
  return problem;
}

TEST(VirtualRanks, StepAsThePipelineDoes) {
  for (const SimulatedWorld& c : worlds()) {
    if (c.world.size > 9) continue;
    Problem problem = problem_on(c);
    problem.rule.type = "accum_adamw";
    problem.rule.eps = 1e-3;
    problem.rule.accum_iter = 3;
    if (c.world.size % 2 == 0) problem.algorithm_options = "share_moments: 4";
    expect_the_pipelines_bits(problem, c.yaml);
    if (problem.topology->directed()) continue;
    problem.algorithm = "outer";
    problem.algorithm_options = "every: 2, kind: noloco, share_moments: 2, share_momentum: 4";
    expect_the_pipelines_bits(problem, concat("outer on ", c.yaml));
  }
}

TEST(VirtualRanks, FollowEveryAlgorithm) {
  const int most_ranks = kSanitized ? 4 : 9;
  for (const auto& [algorithm, options] : algorithm_variants()) {
    const AlgorithmChoice choice(algorithm, Options::parse(options));
    if (std::string_view(options) == "shard: optimizer") continue;
    for (const SimulatedWorld& c : worlds()) {
      if (c.world.size > most_ranks) continue;
      if (!choice.why_not({.topology = c.build().get()}).empty()) continue;
      for (const char* rule : {"sgd", "adamw"}) {
        // The rule meets the algorithm in the sweep alone.
        if (kSanitized && std::string_view(rule) != "sgd") continue;
        Problem problem = problem_on(c);
        problem.algorithm = algorithm;
        problem.algorithm_options = options;
        problem.rule.type = rule;
        // The ranks of a node begin with equal parameters.
        problem.same_start = choice.entry().topologies == TopologyKind::kNodes;
        // Messages of the largest elements depend on where parameters begin and end.
        if (std::string_view(algorithm) == "choco") problem.sizes = {86};
        expect_the_pipelines_bits(
            problem, concat(algorithm, " {", options, "} with ", rule, " on ", c.yaml));
      }
    }
  }
}

/// The worlds in which virtual ranks can encode their messages.
std::vector<SimulatedWorld> coded_worlds() {
  std::vector<SimulatedWorld> all = worlds();
  std::erase_if(all, [](const SimulatedWorld& c) {
    const auto topology = c.build();
    return topology->directed() || topology->round(0).node_size > 1 ||
           topology->round(1).node_size > 1;
  });
  return all;
}

TEST(VirtualRanks, EncodeAsThePipelineDoes) {
  for (const SimulatedWorld& c : coded_worlds()) {
    if (c.world.size > (kSanitized ? 4 : 9)) continue;
    for (const char* codec : {"bf16", "fp16", "int8", "int4"}) {
      for (const auto& [algorithm, options] :
           {std::pair("gossip", ""), std::pair("gradient_tracking", ""),
            std::pair("outer", "every: 2, kind: noloco"),
            std::pair("outer", "every: 3, kind: slowmo, rounds: topology, late: 3")}) {
        Problem problem = problem_on(c);
        problem.codec = codec;
        if (find_codec(codec)->needs_grid()) {
          problem.num_steps = 5 * static_cast<int>(GridLane::kWindow);
          // Every bucket has a grid of its own, and virtual ranks have one bucket without gaps.
          problem.sizes = {86};
          problem.bucket_bytes = 1 << 20;
        }
        problem.algorithm = algorithm;
        problem.algorithm_options = options;
        expect_the_pipelines_bits(problem,
                                  concat(codec, ", ", algorithm, " {", options, "} on ", c.yaml));
      }
    }
  }
}

TEST(VirtualRanks, EncodeSumsAsThePipelineDoes) {
  for (const char* codec : {"bf16", "fp16", "int8"}) {
    for (const char* options : {"", "delay: 1", "sends: momentum"}) {
      for (const int n : {1, 2, 3, kSanitized ? 4 : 9}) {
        // No topology: sums need none. One bucket without gaps, because its shards decide which
        // elements share a scale.
        Problem problem{.num_ranks = n,
                        .algorithm = "allreduce",
                        .algorithm_options = options,
                        .codec = codec,
                        .sizes = {96},
                        .bucket_bytes = 1 << 20,
                        .num_steps = 10};
        if (std::string_view(options) == "sends: momentum") {
          problem.rule = {.type = "qadam", .eps = 1e-3, .warmup = 4};
        }
        expect_the_pipelines_bits(problem, concat(codec, " {", options, "}"));
      }
    }
  }
}

TEST(VirtualRanks, FeedErrorsBackAsThePipelineDoes) {
  for (const CodecEntry& entry : codec_table()) {
    for (const char* options :
         {"every: 2, kind: diloco", "every: 3, kind: noloco, rounds: all, late: 2"}) {
      for (const int n : {1, 2, 3, kSanitized ? 4 : 9}) {
        // As above. Some shards have more than one part.
        const Problem problem{.num_ranks = n,
                              .algorithm = "outer",
                              .algorithm_options = options,
                              .codec = std::string(entry.name),
                              .sizes = {3200},
                              .bucket_bytes = 1 << 20,
                              .num_steps = 10,
                              .same_start = true};
        expect_the_pipelines_bits(problem, concat(entry.name, " {", options, "}"));
      }
    }
  }
}

TEST(VirtualRanks, EncodeNoRoundsOfTwoLevels) {
  VirtualRanks ranks({.topology = make_topology("hierarchical", {.size = 4, .node_size = 2}),
                      .world_size = 4,
                      .dim = kDim,
                      .codec = find_codec("bf16")});
  EXPECT_THROW(ranks.mix(), ConfigError);
}

}  // namespace
}  // namespace gossamer::apps
