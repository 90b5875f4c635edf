// Measuring links on threads: who measures what, and what comes of it. No time is asserted.

#include "apps/lab/plan/link_bench.hpp"

#include "test/core/ranks.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace gossamer::apps {
namespace {

LinkBenchOptions quick(std::vector<RankPair> pairs) {
  return {.pairs = std::move(pairs), .bytes = 4096, .num_pings = 3, .num_transfers = 2};
}

TEST(LinkBench, MeasuresEveryPairOnEveryRankAlike) {
  const auto body = [](Communicator& communicator, const World& world) {
    const LinkFigures figures =
        run_link_bench(communicator, world, quick(parse_pairs("all", world)));
    ASSERT_EQ(figures.pairs.size(), 6U);
    int num_within = 0;
    for (const PairFigures& each : figures.pairs) {
      EXPECT_EQ(each.is_within, each.pair == RankPair(0, 1) || each.pair == RankPair(2, 3));
      EXPECT_GT(each.speed.latency_s, 0.0);
      EXPECT_GT(each.speed.bandwidth, 0.0);
      num_within += each.is_within ? 1 : 0;
    }
    EXPECT_EQ(num_within, 2);
    ASSERT_TRUE(figures.links.within && figures.links.between);
    const std::string text = to_json(figures).dump();
    EXPECT_EQ(read_links(Options::parse(text)), figures.links) << text;
    for (const std::string& other : communicator.all_gather(text)) EXPECT_EQ(other, text);
  };
  run_ranks(4, body, /*node_size=*/2);
}

TEST(LinkBench, MeasuresSumsWhereTheyAreWanted) {
  const auto body = [](Communicator& communicator, const World& world) {
    LinkBenchOptions options = quick(default_pairs(world));
    EXPECT_FALSE(run_link_bench(communicator, world, options).sum_s);
    options.sums = true;
    const LinkFigures figures = run_link_bench(communicator, world, options);
    EXPECT_GT(figures.sum_s.value_or(0.0), 0.0);
    const std::string text = to_json(figures).dump();
    EXPECT_TRUE(contains(text, R"("sum":{"bytes":4096,"seconds":)")) << text;
    EXPECT_EQ(read_links(Options::parse(text)), figures.links) << text;
    for (const std::string& other : communicator.all_gather(text)) EXPECT_EQ(other, text);
  };
  run_ranks(3, body);
}

TEST(LinkBench, RefusesHostsThatAreNoNodes) {
  const auto body = [](Communicator& communicator, World world) {
    EXPECT_NO_THROW(require_regular_hosts(communicator, world));
    // Three ranks on one host, one on another.
    world.node_size = 1;
    world.placement = {.local_rank = world.rank % 3, .local_world_size = world.rank < 3 ? 3 : 1};
    try {
      require_regular_hosts(communicator, world);
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_TRUE(contains(error.what(), "--local-size: ")) << error.what();
      EXPECT_TRUE(contains(error.what(), "the host of rank 0 has 3 ranks")) << error.what();
    }
  };
  run_ranks(4, body);
}

TEST(LinkBench, LeavesOutLinksThatThereAreNot) {
  const auto body = [](Communicator& communicator, const World& world) {
    const LinkFigures figures = run_link_bench(communicator, world, quick(default_pairs(world)));
    EXPECT_FALSE(figures.links.within);
    EXPECT_TRUE(figures.links.between);
  };
  run_ranks(2, body, /*node_size=*/1);
}

TEST(LinkBench, ChoosesAPairOfEachKind) {
  const std::vector<RankPair> both = {{0, 1}, {0, 4}};
  EXPECT_EQ(default_pairs({.size = 8, .node_size = 4}), both);
  EXPECT_EQ(default_pairs({.size = 4, .node_size = 4}), (std::vector<RankPair>{{0, 1}}));
  EXPECT_EQ(default_pairs({.size = 4, .node_size = 1}), (std::vector<RankPair>{{0, 1}}));
  EXPECT_TRUE(default_pairs({.size = 1, .node_size = 1}).empty());
}

TEST(LinkBench, MeasuresDisjointPairsAtOnce) {
  const World eight{.size = 8, .node_size = 2};
  EXPECT_EQ(disjoint_pairs(eight), (std::vector<RankPair>{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(disjoint_pairs({.size = 5, .node_size = 5}), (std::vector<RankPair>{{0, 1}, {2, 3}}));
  EXPECT_EQ(disjoint_pairs({.size = 6, .node_size = 2}), (std::vector<RankPair>{{0, 2}, {1, 3}}));
  const auto body = [](Communicator& communicator, const World& world) {
    LinkBenchOptions options = quick(disjoint_pairs(world));
    options.together = true;
    const LinkFigures figures = run_link_bench(communicator, world, options);
    ASSERT_EQ(figures.pairs.size(), 2U);
    for (const PairFigures& each : figures.pairs) EXPECT_GT(each.speed.bandwidth, 0.0);
    EXPECT_TRUE(figures.links.between);
    options.pairs = {{0, 1}, {1, 2}};
    EXPECT_THROW((void)run_link_bench(communicator, world, options), ConfigError);
  };
  run_ranks(4, body, /*node_size=*/2);
}

TEST(LinkBench, ReadsPairs) {
  const World world{.size = 4, .node_size = 2};
  EXPECT_EQ(parse_pairs("0-1,3-2", world), (std::vector<RankPair>{{0, 1}, {2, 3}}));
  EXPECT_EQ(parse_pairs("all", world).size(), 6U);
  for (const char* text : {"", "0", "0-", "-1", "0-0", "0-4", "0-1,", "0-1-2", "a-b", "0-1;2-3"}) {
    EXPECT_THROW(parse_pairs(text, world), ConfigError) << text;
  }
}

TEST(LinkBench, RefusesOneRankAndNothingToMeasure) {
  const auto alone = [](Communicator& communicator, const World& world) {
    EXPECT_THROW(run_link_bench(communicator, world, quick({})), ConfigError);
  };
  run_ranks(1, alone);
  const auto wrong = [](Communicator& communicator, const World& world) {
    EXPECT_THROW(run_link_bench(communicator, world, quick({{0, 2}})), ConfigError);
    LinkBenchOptions options = quick({{0, 1}});
    options.bytes = 0;
    EXPECT_THROW(run_link_bench(communicator, world, options), ConfigError);
  };
  run_ranks(2, wrong);
}

}  // namespace
}  // namespace gossamer::apps
