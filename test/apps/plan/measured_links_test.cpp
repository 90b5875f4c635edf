// What measured pairs say about where nodes lie.

#include "apps/plan/measured_links.hpp"

#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace gossamer::apps {
namespace {

/// Pairs of ranks on nodes of their own, whose link has the speed that `speed_of` gives.
template <class SpeedOf>
std::vector<PairFigures> pairs_between(int num_nodes, const SpeedOf& speed_of) {
  std::vector<PairFigures> pairs;
  for (int a = 0; a < num_nodes; ++a) {
    for (int b = a + 1; b < num_nodes; ++b)
      pairs.push_back({.pair = {a, b}, .speed = speed_of(a, b)});
  }
  return pairs;
}

TEST(MeasuredLinks, TellsWhichNodesLieApart) {
  // Three continents: 0 and 1, 2 and 3, 4. The link of 1 and 2 is slower than the others between
  // their regions.
  constexpr int kRegionOf[] = {0, 0, 1, 1, 2};
  const auto speed = [&](int a, int b) {
    if (kRegionOf[a] == kRegionOf[b])
      return LinkSpeed{.latency_s = 2e-4 * (1 + a), .bandwidth = 1e9};
    if (a == 1 && b == 2) return LinkSpeed{.latency_s = 0.06, .bandwidth = 5e7};
    return LinkSpeed{.latency_s = 0.02 * b, .bandwidth = 1e8};
  };
  const Regions regions = regions_of(pairs_between(5, speed), {.size = 5, .node_size = 1});
  ASSERT_EQ(regions.count(), 3);
  EXPECT_EQ(regions.list[0], (Region{"nodes 0 to 1", 2}));
  EXPECT_EQ(regions.list[1], (Region{"nodes 2 to 3", 2}));
  EXPECT_EQ(regions.list[2], (Region{"node 4", 1}));
  EXPECT_EQ(regions.paths[0][1], (RegionPath{.latency_s = 0.06, .bandwidth = 5e7}));
  EXPECT_EQ(regions.paths[1][0], regions.paths[0][1]);
  EXPECT_EQ(regions.paths[2][1], (RegionPath{.latency_s = 0.08, .bandwidth = 1e8}));
  const Links links{.between = LinkSpeed{}, .regions = regions};
  EXPECT_EQ(read_links(Options::parse(to_json(links).dump())), links);
}

TEST(MeasuredLinks, SeesOneSlowHost) {
  const auto speed = [](int, int b) {
    return LinkSpeed{.latency_s = 1e-4, .bandwidth = b == 3 ? 6e6 : 6e7};
  };
  const Regions regions = regions_of(pairs_between(4, speed), {.size = 4, .node_size = 1});
  ASSERT_EQ(regions.count(), 2);
  EXPECT_EQ(regions.list[0].num_nodes, 3);
  EXPECT_EQ(regions.paths[0][1].bandwidth, 6e6);
}

TEST(MeasuredLinks, HasNoRegionsWhereNodesAreAlikeOrAPairIsMissing) {
  // Latencies of near hosts differ by several times, and mean nothing.
  const auto alike = [](int a, int b) {
    return LinkSpeed{.latency_s = 1e-4 * (a + b), .bandwidth = 1e9 + a};
  };
  std::vector<PairFigures> pairs = pairs_between(4, alike);
  EXPECT_EQ(regions_of(pairs, {.size = 4, .node_size = 1}).count(), 0);
  pairs.front().speed.latency_s = 0.1;
  EXPECT_EQ(regions_of(pairs, {.size = 4, .node_size = 1}).count(), 2);
  pairs.pop_back();
  EXPECT_EQ(regions_of(pairs, {.size = 4, .node_size = 1}).count(), 0);
  // One node.
  EXPECT_EQ(regions_of(pairs, {.size = 4, .node_size = 4}).count(), 0);
}

}  // namespace
}  // namespace gossamer::apps
