// What measured pairs say about where nodes lie.

#include "apps/lab/plan/measured_links.hpp"

#include <cstddef>
#include <utility>
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
  for (const auto& [slow, num_regions] : {std::pair{3, 2}, {0, 2}, {1, 3}}) {
    const auto speed = [slow](int a, int b) {
      return LinkSpeed{.latency_s = 1e-4, .bandwidth = a == slow || b == slow ? 6e6 : 6e7};
    };
    const Regions regions = regions_of(pairs_between(4, speed), {.size = 4, .node_size = 1});
    ASSERT_EQ(regions.count(), num_regions) << slow;
    const std::vector<int> region_of = regions.region_of_nodes();
    const auto path = [&](int a, int b) {
      const auto region = [&](int node) {
        return static_cast<std::size_t>(region_of[static_cast<std::size_t>(node)]);
      };
      return regions.paths[region(a)][region(b)].bandwidth;
    };
    EXPECT_EQ(path(slow, (slow + 1) % 4), 6e6);
    EXPECT_EQ(path((slow + 1) % 4, slow), 6e6);
  }
}

TEST(MeasuredLinks, AreMediansOfEachKind) {
  // Two nodes of two ranks here, one far away. The pair of ranks 0 and 1 is within a node.
  const World world{.size = 6, .node_size = 2};
  std::vector<PairFigures> pairs;
  const auto add = [&](int a, int b, double bandwidth, double latency_s) {
    pairs.push_back({.pair = {a, b},
                     .is_within = a / 2 == b / 2,
                     .speed = {.latency_s = latency_s, .bandwidth = bandwidth}});
  };
  add(0, 1, 9e9, 1e-6);
  add(0, 2, 1e9, 1e-4);
  add(1, 3, 3e9, 3e-4);
  add(0, 3, 2e9, 2e-4);
  const Links near = links_of(pairs, world);
  EXPECT_EQ(near.within, (LinkSpeed{.latency_s = 1e-6, .bandwidth = 9e9}));
  EXPECT_EQ(near.between, (LinkSpeed{.latency_s = 2e-4, .bandwidth = 2e9}));
  EXPECT_EQ(near.regions.count(), 0) << "the third node has no pair";
  add(0, 4, 1e8, 0.05);
  add(3, 5, 2e8, 0.07);
  const Links far = links_of(pairs, world);
  EXPECT_EQ(far.between, near.between);
  EXPECT_EQ(far.regions.region_of_nodes(), (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(far.regions.paths[0][1], (RegionPath{.latency_s = 0.07, .bandwidth = 1e8}));
}

TEST(MeasuredLinks, TakeTheFastestLinkAsThatOfNodesThatLieAlone) {
  // Nodes 0 and 2 are near, but do not follow one another.
  const auto speed = [](int a, int b) {
    return a == 0 && b == 2 ? LinkSpeed{.latency_s = 0.01, .bandwidth = 1e8}
                            : LinkSpeed{.latency_s = 0.05, .bandwidth = 1e7};
  };
  const Links links = links_of(pairs_between(3, speed), {.size = 3, .node_size = 1});
  EXPECT_EQ(links.regions.count(), 3);
  EXPECT_EQ(links.between, (LinkSpeed{.latency_s = 0.01, .bandwidth = 1e8}));
  EXPECT_FALSE(links.within);
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
