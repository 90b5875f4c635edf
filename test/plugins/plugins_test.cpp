// Tests the plug-ins that docs/guide/extending.md shows, so that its examples compile and are
// right.

#include "test/core/problem.hpp"
#include "test/plugins/damped_gossip_options.hpp"
#include "test/plugins/sign_sgd.hpp"
#include "test/support/mixing_matrix.hpp"

#include <array>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "core/algorithms/plug_ins.hpp"
#include "core/exchange/peer_lanes.hpp"
#include "optim/sweep.hpp"
#include "topology/registry.hpp"
#include "topology/verify.hpp"

namespace gossamer {

AlgorithmFactory read_damped_gossip(const Options& options);
TopologyFactory make_round_robin;

namespace {

constexpr AlgorithmEntry kDampedGossipRow =
    AlgorithmEntry{.name = "damped_gossip",
                   .summary = "gossip that goes a part of the way to the mix",
                   .options = damped_gossip::kOptions,
                   .topologies = TopologyKind::kUndirected,
                   .read = read_damped_gossip};

bool always_fits(const World& world) { return world.size >= 1; }

constexpr TopologyEntry kRoundRobinRow = TopologyEntry{.name = "round-robin",
                                                       .summary = "all pairs, one after the other",
                                                       .options = {},
                                                       .sizes = "every world size",
                                                       .fits = always_fits,
                                                       .make = make_round_robin};

/// The values of all ranks after `num_rounds` rounds of mixing alone: mixed[rank].
std::vector<std::vector<double>> mixed_by_algorithm(const char* options, int num_ranks,
                                                    int num_rounds) {
  std::vector<std::vector<double>> mixed(static_cast<std::size_t>(num_ranks));
  run_ranks(num_ranks, [&](Communicator& communicator, const World& world) {
    InlineStream stream;
    PipelineMetrics metrics;
    Progress progress;
    PeerLanes lanes({.stream = stream,
                     .communicator = communicator,
                     .topology = make_topology("ring", world),
                     .metrics = metrics});
    const auto optimizer = make_optimizer("sgd");
    const FixedSchedule schedule(0.0);
    const auto infos = parameters_of_sizes({3}, DType::kFloat64);
    const BucketPlan plan = plan_buckets(infos, declared_order(1), 1 << 20);
    const ParameterMemory memory = memory_of(plan, stream).front();
    const Block parameter = part_of(memory.parameters.block(), 0, 3);
    const double own = world.rank;
    write_block(parameter, std::vector<double>{own, 10.0 * own, 1.0});
    const Buffer squares = stream.allocate(1, DType::kFloat64);
    std::vector<Bucket> buckets;
    buckets.emplace_back(0, plan.buckets.front(), infos,
                         Bucket::Memory{.model = memory, .squares = squares.block()}, *optimizer,
                         stream);
    const auto algorithm = kDampedGossipRow.read(Options::parse(options))
                               .make({.buckets = buckets,
                                      .lanes = lanes,
                                      .progress = progress,
                                      .schedule = schedule,
                                      .stream = stream});
    lanes.share_memory();
    Bucket& bucket = buckets.front();
    for (; progress.num_steps < num_rounds; ++progress.num_steps) {
      algorithm->after_update(bucket);
      bucket.close();
      bucket.update({.intake = algorithm->before_update(bucket)});
      bucket.begin_step();
    }
    lanes.drain();
    communicator.barrier();
    mixed[static_cast<std::size_t>(world.rank)] = read_block(parameter);
  });
  return mixed;
}

TEST(DampedGossip, FollowsItsRecursion) {
  constexpr int kRounds = 5;
  for (const int n : {1, 2, 3, 4}) {
    for (const double share : {0.3, 1.0}) {
      SCOPED_TRACE(concat(n, " ranks, share ", share));
      const auto found = mixed_by_algorithm(concat("share: ", share).c_str(), n, kRounds);
      const auto ring = make_topology("ring", {.size = n});
      Eigen::MatrixXd x(n, 3);
      for (int rank = 0; rank < n; ++rank) x.row(rank) << rank, 10.0 * rank, 1.0;
      for (int k = 0; k < kRounds; ++k) {
        x += share * (mixing_matrix(ring->round(k), n) * x - x).eval();
      }
      for (int rank = 0; rank < n; ++rank) {
        for (int e = 0; e < 3; ++e) {
          EXPECT_NEAR(found[static_cast<std::size_t>(rank)][static_cast<std::size_t>(e)],
                      x(rank, e), 1e-12);
        }
      }
    }
  }
}

TEST(DampedGossip, ReadsItsOptionAndRefusesDirectedTopologies) {
  EXPECT_THROW((void)kDampedGossipRow.read(Options::parse("share: 0")), ConfigError);
  EXPECT_THROW((void)kDampedGossipRow.read(Options::parse("share: 1.5")), ConfigError);
  const AlgorithmChoice damped(kDampedGossipRow);
  EXPECT_EQ(damped.why_not({.topology = make_topology("ring", {.size = 4}).get()}), "");
  EXPECT_NE(damped.why_not({.topology = make_topology("static-exp", {.size = 4}).get()}), "");
}

TEST(SignSgd, MovesEveryElementByTheLearningRate) {
  std::vector<float> p = {1.0F, 1.0F, 1.0F};
  std::vector<float> g = {0.001F, -40.0F, 0.0F};
  const auto block_of = [](std::vector<float>& values) {
    return Block{.data = values.data(), .numel = 3, .dtype = DType::kFloat32};
  };
  ParameterUpdate update;
  update.parameter = block_of(p);
  update.gradient = block_of(g);
  update.lr = 0.25;
  (void)SignSgdRow::make(Options(), [&](const SignRule& rule) -> std::unique_ptr<Optimizer> {
    sweep(rule, update);
    return nullptr;
  });
  EXPECT_EQ(p, (std::vector<float>{0.75F, 1.25F, 1.0F}));
}

TEST(RoundRobin, MeetsEveryOtherRankOnceInAPeriod) {
  for (int n = 1; n <= 9; ++n) {
    const auto topology = kRoundRobinRow.make({.size = n}, Options(), {});
    EXPECT_FALSE(find_violation(*topology, n, 2 * n)) << n << " ranks";
    std::set<std::pair<int, int>> met;
    for (std::int64_t k = 0; k < *topology->period(); ++k) {
      const Round round = topology->round(k);
      for (const Edge& edge : round.edges) {
        if (edge.ranks.size() == 2) {
          EXPECT_TRUE(met.emplace(edge.ranks[0], edge.ranks[1]).second) << n << " ranks";
        }
      }
    }
    EXPECT_EQ(met.size(), static_cast<std::size_t>(n * (n - 1) / 2)) << n << " ranks";
  }
}

TEST(PlugIns, MayBeInsideOtherTopologies) {
  const std::array own = {kRoundRobinRow};
  const World world{.size = 4, .node_size = 2};
  for (const char* const section :
       {"name: round-robin", "every: {base: round-robin, period: 2}",
        "alternate: [ring, round-robin]", "{name: hierarchical, leaders: round-robin}",
        "phases: [{topology: round-robin, until: 2}, {topology: ring}]"}) {
    EXPECT_NO_THROW((void)read_topology(Options::parse(section), world, std::nullopt, own))
        << section;
    EXPECT_THROW((void)read_topology(Options::parse(section), world), ConfigError) << section;
  }
}

TEST(PlugIns, HaveNamesOfTheirOwn) {
  const auto refusal = [](std::string_view name) {
    AlgorithmEntry row = kDampedGossipRow;
    row.name = name;
    const std::array rows = {kDampedGossipRow, row};
    return what_of<ConfigError>([&] { PlugIns{.algorithms = rows}.check(); });
  };
  EXPECT_EQ(refusal("gentle_gossip"), "");
  // Names match in either spelling.
  for (const char* const taken : {"damped-gossip", "gossip", "Async-Gossip"}) {
    EXPECT_EQ(refusal(taken), concat("two rows have the name ", taken,
                                     " (algorithm); give your own row another name"));
  }
}

}  // namespace
}  // namespace gossamer
