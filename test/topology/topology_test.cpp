#include "topology/topology.hpp"

#include "test/topology/worlds.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

namespace gossamer::topology_test {
namespace {

using Ranks = std::vector<int>;

std::vector<Ranks> ranks_of(const Round& round) {
  std::vector<Ranks> all;
  for (const Edge& edge : round.edges) all.push_back(edge.ranks);
  return all;
}

std::unique_ptr<Topology> build(std::string_view name, int size, int local = 1) {
  return TopologyCase{name, {.size = size, .node_size = local}}.build();
}

TEST(Members, HoldFewAndManyAlike) {
  for (const Ranks& ranks : {Ranks{}, Ranks{7}, Ranks{7, 3}, Ranks{5, 9, 2, 8}}) {
    Members members(ranks);
    const Members copy = members;
    std::ranges::sort(members);
    Ranks sorted = ranks;
    std::ranges::sort(sorted);
    EXPECT_EQ(Ranks(members), sorted);
    EXPECT_EQ(Ranks(copy), ranks);
    EXPECT_EQ(copy == members, ranks == sorted);
    EXPECT_EQ(copy < Members({7, 2}), ranks < Ranks({7, 2}));
    const Members moved = std::move(members);
    EXPECT_EQ(moved, sorted);
  }
}

TEST(Edge, AveragesWithWeightOneOverN) {
  EXPECT_EQ(averaging_edge({2, 0, 1}), (Edge{{0, 1, 2}, 1.0 / 3.0}));
  EXPECT_EQ(averaging_edge({5}), (Edge{{5}, 1.0}));
  EXPECT_THROW(averaging_edge({}), std::logic_error);
}

TEST(Round, FindsTheEdgeOfARank) {
  const Round round{{Edge{{0, 2}, 0.5}, Edge{{1}, 1.0}}};
  EXPECT_EQ(round.edge_of(2), round.edges[0]);
  EXPECT_EQ(round.edge_of(1), round.edges[1]);
  EXPECT_THROW((void)round.edge_of(3), std::logic_error);
}

TEST(Round, IsCompletedWithRanksThatSitOut) {
  const Round round = complete_round({averaging_edge({4, 2}), averaging_edge({1, 3})}, 6);
  EXPECT_EQ(ranks_of(round), (std::vector<Ranks>{{0}, {1, 3}, {2, 4}, {5}}));
  EXPECT_EQ(round.edge_of(0).weight, 1.0);
  EXPECT_THROW(complete_round({averaging_edge({0, 2})}, 2), std::logic_error);
  EXPECT_THROW(complete_round({averaging_edge({0, 1}), averaging_edge({1, 2})}, 3),
               std::logic_error);
}

TEST(Periodic, RepeatsItsRounds) {
  const Round first = complete_round({averaging_edge({0, 1})}, 3);
  const Round second = complete_round({averaging_edge({1, 2})}, 3);
  const auto topology = make_periodic("mine", {first, second});
  EXPECT_EQ(topology->name(), "mine");
  EXPECT_EQ(topology->period(), 2);
  EXPECT_EQ(topology->round(0), first);
  EXPECT_EQ(topology->round((std::int64_t{1} << 40) + 1), second);
}

TEST(Periodic, RefusesWhatIsNoTopology) {
  EXPECT_THROW(make_periodic("empty", {}), std::logic_error);
  EXPECT_THROW(make_periodic("broken", {{{{{0, 0}, 0.5}}}}), std::logic_error);
  const Round two = complete_round({}, 2);
  const Round three = complete_round({}, 3);
  EXPECT_THROW(make_periodic("unequal", {two, three}), std::logic_error);
}

class EveryTopology : public TopologyTest {};
INSTANTIATE_TEST_SUITE_P(Topologies, EveryTopology, testing::ValuesIn(topologies_to_test()),
                         test_name);

TEST_P(EveryTopology, HasPartitionsThatRepeat) {
  for_each_case(true, [](const TopologyCase& c) {
    const int size = c.world.size;
    const auto topology = c.build();
    // What never repeats is at least the same when asked again.
    const std::int64_t period = topology->period().value_or(0);
    ASSERT_TRUE(period >= 1 || c.topology == "random-matching");
    for (std::int64_t k = 0; k <= period + 2; ++k) {
      EXPECT_NO_THROW(check_round(topology->round(k), size, topology->directed())) << "round " << k;
      EXPECT_EQ(topology->round(k), topology->round(k + period)) << "round " << k;
    }
    EXPECT_THROW((void)topology->round(-1), std::logic_error);
  });
}

TEST_P(EveryTopology, IsNamedAsInTheTable) {
  for_each_case(true, [](const TopologyCase& c) { EXPECT_EQ(c.build()->name(), c.topology); });
}

TEST_P(EveryTopology, IsTheSameOnEveryRank) {
  for_each_case(true, [](const TopologyCase& c) {
    const auto topology = c.build();
    TopologyCase other = c;
    other.world.rank = other.world.size - 1;
    other.world.placement = {.local_rank = 1, .local_world_size = 2};
    const auto there = other.build();
    ASSERT_EQ(there->period(), topology->period());
    for (std::int64_t k = 0; k < topology->period().value_or(8); ++k) {
      EXPECT_EQ(there->round(k), topology->round(k)) << "round " << k;
    }
  });
}

TEST_P(EveryTopology, LetsNobodyRestWhereItSaysSo) {
  for_each_case(true, [](const TopologyCase& c) {
    const std::string_view name = c.topology;
    if (name != "complete" && name != "one-peer-exp" && name != "alternating-exp-ring") return;
    const int size = c.world.size;
    const auto topology = c.build();
    for (std::int64_t k = 0; k < topology->period().value(); ++k) {
      const Round round = topology->round(k);
      const auto idle = std::ranges::count_if(
          round.edges, [](const Edge& edge) { return edge.ranks.size() == 1; });
      EXPECT_EQ(idle, size == 1 ? 1 : 0) << "round " << k;
    }
  });
}

TEST_P(EveryTopology, LeavesALoneRankAlone) {
  for_each_case(true, [](const TopologyCase& c) {
    const World world{.size = 1};
    const auto topology = make_topology(c.topology, world);
    EXPECT_TRUE(topology->period().has_value());
    EXPECT_EQ(topology->round(7), (Round{{Edge{{0}, 1.0}}}));
  });
}

TEST(Ring, MeetsBothNeighboursEquallyOftenAndRestsOncePerPeriod) {
  for (const int size : {3, 5, 7, 9, 17}) {
    const auto ring = build("ring", size);
    ASSERT_EQ(ring->period(), size);
    for (int rank = 0; rank < size; ++rank) {
      int rests = 0;
      std::multiset<int> met;
      for (std::int64_t k = 0; k < size; ++k) {
        const Edge edge = ring->round(k).edge_of(rank);
        if (edge.ranks.size() == 1) ++rests;
        for (const int member : edge.ranks) met.insert(member);
      }
      EXPECT_EQ(rests, 1) << size << " ranks, rank " << rank;
      const auto half = static_cast<std::size_t>(size - 1) / 2;
      EXPECT_EQ(met.count((rank + 1) % size), half) << size << " ranks, rank " << rank;
      EXPECT_EQ(met.count((rank + size - 1) % size), half) << size << " ranks, rank " << rank;
    }
  }
}

TEST(Ring, MovesTheRestingRankOnByOne) {
  const auto ring = build("ring", 5);
  EXPECT_EQ(ranks_of(ring->round(0)), (std::vector<Ranks>{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(ranks_of(ring->round(1)), (std::vector<Ranks>{{0}, {1, 2}, {3, 4}}));
  EXPECT_EQ(ranks_of(ring->round(2)), (std::vector<Ranks>{{0, 4}, {1}, {2, 3}}));
}

TEST(Ring, NeedsNoMemoryForItsPeriod) {
  const auto ring = build("ring", 100001);
  EXPECT_EQ(ring->period(), 100001);
  EXPECT_EQ(ring->round(100000).edge_of(0).ranks, (Ranks{0, 100000}));
}

TEST(AlternatingExpRing, IsOnePeerExpWithOneRankPerNode) {
  for (const int size : {2, 4, 8, 16}) {
    const auto alternating = build("alternating-exp-ring", size, 1);
    const auto exponential = build("one-peer-exp", size, 1);
    ASSERT_EQ(alternating->period(), exponential->period());
    for (std::int64_t k = 0; k < *exponential->period(); ++k) {
      EXPECT_EQ(alternating->round(k), exponential->round(k));
    }
  }
}

TEST(AlternatingExpRing, IsCompleteOnOneNode) {
  const auto topology = build("alternating-exp-ring", 6, 6);
  EXPECT_EQ(topology->period(), 1);
  EXPECT_EQ(topology->round(0), build("complete", 6)->round(0));
}

TEST(AlternatingExpRing, LetsOddPairsOfNodesMeetFirst) {
  const auto topology = build("alternating-exp-ring", 8, 2);
  ASSERT_EQ(topology->period(), 4);
  EXPECT_EQ(ranks_of(topology->round(0)), (std::vector<Ranks>{{0, 1}, {2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(ranks_of(topology->round(3)), (std::vector<Ranks>{{0, 1, 4, 5}, {2, 3}, {6, 7}}));
}

}  // namespace
}  // namespace gossamer::topology_test
