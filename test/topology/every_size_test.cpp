// Every topology for every number of ranks: consistent rounds, or an error that helps.

#include "test/base/thrown.hpp"
#include "test/support/sanitized.hpp"
#include "test/topology/worlds.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "topology/graph.hpp"
#include "topology/rank_round.hpp"
#include "topology/spectrum.hpp"
#include "topology/verify.hpp"

namespace gossamer {
namespace {

// Ranks times rounds that a test goes through.
constexpr std::int64_t kMostRankRounds = std::int64_t{1} << 18;

std::vector<int> world_sizes() {
  std::vector<int> sizes;
  for (int size = 1; size <= 33; ++size) sizes.push_back(size);
  sizes.insert(sizes.end(), {64, 100, 128});
  // Sanitizers note every allocation, and large worlds are nothing but allocations.
  if (!kSanitized) sizes.insert(sizes.end(), {1000, 1024, 4096});
  return sizes;
}

template <class Check>
void for_every_size(std::string_view topology, const Check& check) {
  for (const int size : world_sizes()) {
    for (const int local : {1, 2, 4, 5, 8}) {
      if (size % local != 0 || (local > 1 && !looks_at_nodes(topology))) continue;
      const TopologyCase c{topology, {.size = size, .node_size = local}};
      SCOPED_TRACE(to_string(c));
      check(c);
    }
  }
}

bool fits(const TopologyCase& c) {
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.name == c.topology) return entry.fits(c.world);
  }
  return false;
}

class EverySize : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Topologies, EverySize, testing::ValuesIn(topologies_to_test()), test_name);

TEST_P(EverySize, KeepsTheRulesOrNamesValidSizes) {
  for_every_size(GetParam(), [](const TopologyCase& c) {
    const World& world = c.world;
    if (!fits(c)) {
      const std::string what = what_of<ConfigError>([&] { (void)c.build(); });
      EXPECT_CONTAINS(what, "the nearest: ");
      return;
    }
    const auto topology = c.build();
    const std::int64_t most = kMostRankRounds / world.size;
    const std::int64_t num_rounds = std::min(most, topology->period().value_or(64));
    const bool whole = num_rounds < most;
    const auto found = find_violation(*topology, world.size, num_rounds);
    // Who has not met yet in a part of a long period may do so later.
    if (found && (whole || found->rule != "connected")) {
      FAIL() << found->rule << ", rank " << found->rank << ", round " << found->round << ": "
             << found->text;
    }
  });
}

using Message = std::tuple<int, int>;

/// Whoever listens is spoken to in the same round, and the other way round.
void expect_matching(const Round& round, int num_places) {
  std::set<Message> sent;
  std::set<Message> heard;
  for (int place = 0; place < num_places; ++place) {
    const RankRound mine = rank_round(round, place * round.node_size);
    for (const int peer : mine.send_to) sent.emplace(place, peer);
    for (const int peer : mine.receive_from) heard.emplace(peer, place);
    double sum = mine.keep;
    if (mine.kind == RankRound::Kind::kGroup) {
      EXPECT_TRUE(std::ranges::binary_search(mine.group, place));
      for (const int member : mine.group) {
        EXPECT_EQ(rank_round(round, member * round.node_size).group, mine.group);
      }
      sum += mine.take.at(0) * static_cast<double>(mine.group.size());
    } else {
      EXPECT_EQ(mine.take.size(), mine.receive_from.size());
      for (const double weight : mine.take) sum += weight;
    }
    EXPECT_NEAR(sum, 1.0, 1e-12);
  }
  EXPECT_EQ(sent, heard);
}

TEST_P(EverySize, SendsWhatIsReceived) {
  for_every_size(GetParam(), [](const TopologyCase& c) {
    const World& world = c.world;
    if (!fits(c) || world.size > 128) return;
    const auto topology = c.build();
    for (std::int64_t k = 0; k < std::min<std::int64_t>(topology->period().value_or(8), 40); ++k) {
      const Round round = topology->round(k);
      expect_matching(round, world.size / round.node_size);
    }
  });
}

// Takezawa et al., NeurIPS 2023, theorem 1: at most 2 log_(k+1)(n) + 2 rounds.
TEST(BaseK, IsExactForEveryNumberOfRanks) {
  for (const int peers : {1, 2, 3, 4, 7}) {
    for (const int size : world_sizes()) {
      const Options options = Options::parse("k: " + std::to_string(peers));
      const auto topology = make_topology("base-k", {.size = size}, options);
      const std::int64_t period = topology->period().value();
      const double bound = 2.0 * std::log(size) / std::log(peers + 1.0) + 2.0;
      EXPECT_LE(static_cast<double>(period), bound + 1e-9) << size << " ranks, k = " << peers;
      EXPECT_EQ(exact_after(*topology, size), period) << size << " ranks, k = " << peers;
      EXPECT_EQ(find_violation(*topology, size, period), std::nullopt)
          << size << " ranks, k = " << peers;
      for (std::int64_t k = 0; k < period && size <= 128; ++k) {
        for (int rank = 0; rank < size; ++rank) {
          const RankRound mine = rank_round(topology->round(k), rank);
          const std::size_t degree = std::max(mine.send_to.size(), mine.group.size());
          EXPECT_LE(degree, static_cast<std::size_t>(peers) + (mine.group.empty() ? 0U : 1U));
        }
      }
    }
  }
}

// Figures 3 and 4 of the paper: 5 nodes need 5 rounds, 6 nodes 4 (and 5 by the simple way).
TEST(BaseK, HasThePapersLengths) {
  EXPECT_EQ(make_topology("base-k", {.size = 5})->period(), 5);
  EXPECT_EQ(make_topology("base-k", {.size = 6})->period(), 4);
  EXPECT_EQ(make_topology("base-k", {.size = 8})->period(), 3);
  EXPECT_EQ(make_topology("base-k", {.size = 9}, Options::parse("k: 2"))->period(), 2);
}

TEST(RandomMatching, IsDrawnFromSeedAndRound) {
  const World world{.size = 20};
  const auto one = make_topology("random-matching", world, Options::parse("seed: 1"));
  const auto same = make_topology("random-matching", world, Options::parse("seed: 1"));
  const auto other = make_topology("random-matching", world, Options::parse("seed: 2"));
  std::set<std::vector<int>> pairs;
  for (std::int64_t k = 0; k < 50; ++k) {
    EXPECT_EQ(one->round(k), same->round(k));
    EXPECT_NE(one->round(k), other->round(k));
    EXPECT_NE(one->round(k), one->round(k + 1));
    for (const Edge& edge : one->round(k).edges) pairs.insert(edge.ranks);
  }
  // 500 draws of 190 pairs.
  EXPECT_GT(pairs.size(), 150U);
}

TEST(LocalSgd, SitsOutThenAverages) {
  const auto topology = make_topology("local-sgd", {.size = 3}, Options::parse("sit_out: 2"));
  ASSERT_EQ(topology->period(), 3);
  EXPECT_EQ(topology->round(0), complete_round({}, 3));
  EXPECT_EQ(topology->round(1), complete_round({}, 3));
  EXPECT_EQ(topology->round(2), complete_round({averaging_edge({0, 1, 2})}, 3));
  EXPECT_EQ(make_topology("local-sgd", {.size = 3}, Options::parse("sit_out: 0"))->period(), 1);
}

TEST(Star, MeetsEveryLeafOnce) {
  const auto topology = make_topology("star", {.size = 4});
  ASSERT_EQ(topology->period(), 3);
  EXPECT_EQ(topology->round(1).edge_of(0).ranks, (std::vector<int>{0, 2}));
  EXPECT_EQ(topology->round(2).edge_of(3).ranks, (std::vector<int>{0, 3}));
}

TEST(ShiftOne, MeetsTheOtherHalfAsBaguaDoes) {
  for (const int size : {2, 4, 6, 10, 16}) {
    const auto topology = make_topology("shift-one", {.size = size});
    const int half = size / 2;
    ASSERT_EQ(topology->period(), half);
    for (int k = 0; k < half; ++k) {
      for (int i = 0; i < half; ++i) {
        const std::vector<int> pair = {i, half + (k + i) % half};
        EXPECT_EQ(topology->round(k).edge_of(i).ranks, pair) << size << " ranks, round " << k;
      }
    }
  }
}

TEST(ShiftOne, LetsEveryRankRestOnceIfTheirNumberIsOdd) {
  for (const int size : {3, 5, 7, 17}) {
    const auto topology = make_topology("shift-one", {.size = size});
    ASSERT_EQ(topology->period(), size);
    for (int k = 0; k < size; ++k) {
      std::vector<Edge> alone = topology->round(k).edges;
      std::erase_if(alone, [](const Edge& edge) { return edge.ranks.size() != 1; });
      ASSERT_EQ(alone.size(), 1U) << size << " ranks, round " << k;
      EXPECT_EQ(alone.front().ranks.front(), k) << size << " ranks";
    }
  }
}

TEST(ShiftOne, NeedsNoMemoryForItsPeriod) {
  const auto topology = make_topology("shift-one", {.size = 100001});
  EXPECT_EQ(topology->period(), 100001);
  EXPECT_EQ(topology->round(100000).edge_of(0).ranks, (std::vector<int>{0, 50000}));
}

TEST(Trees, JoinEveryRankToItsParent) {
  for (const int size : {2, 3, 6, 17}) {
    const Round chain = make_topology("chain", {.size = size})->round(0);
    const Round tree = make_topology("binary-tree", {.size = size})->round(0);
    for (int rank = 1; rank < size; ++rank) {
      EXPECT_EQ(rank_round(chain, rank).send_to.front(), rank - 1);
      EXPECT_EQ(rank_round(tree, rank).send_to.front(), (rank - 1) / 2);
    }
    EXPECT_TRUE(is_tree(chain)) << size;
    EXPECT_TRUE(is_tree(tree)) << size;
  }
}

TEST(Trees, AreGraphsWithoutCyclesInOnePiece) {
  const auto is = [](std::string_view name, int size) {
    return is_tree(make_topology(name, {.size = size, .node_size = size})->round(0));
  };
  EXPECT_TRUE(is("complete", 1));
  EXPECT_TRUE(is("complete", 2));
  EXPECT_FALSE(is("complete", 3));
  EXPECT_FALSE(is("static-ring", 5));
  EXPECT_FALSE(is("one-peer-exp", 4));
  EXPECT_TRUE(is_tree(metropolis_round({{2, 0}, {2, 1}, {2, 3}, {3, 4}}, 5)));
  EXPECT_FALSE(is_tree(metropolis_round({{2, 0}, {2, 1}}, 4)));
  EXPECT_FALSE(is_tree(metropolis_round({{0, 1}, {1, 2}, {2, 0}}, 4)));
}

/// The distinct pairs of all rounds.
std::set<std::vector<int>> pairs_of(const Topology& topology) {
  std::set<std::vector<int>> pairs;
  for (std::int64_t k = 0; k < *topology.period(); ++k) {
    for (const Edge& edge : topology.round(k).edges) {
      if (edge.ranks.size() != 2) continue;
      EXPECT_TRUE(pairs.insert(edge.ranks).second);
    }
  }
  return pairs;
}

TEST(Lattice, HasEveryEdgeOnce) {
  const World world{.size = 12};  // 3 rows of 4
  EXPECT_EQ(pairs_of(*make_topology("grid", world)).size(), 3U * 3 + 2U * 4);
  EXPECT_EQ(pairs_of(*make_topology("torus", world)).size(), 24U);
  EXPECT_EQ(make_topology("grid", world)->period(), 4);
  EXPECT_EQ(make_topology("torus", world)->period(), 5);
  const Options two = Options::parse("rows: 2");
  EXPECT_EQ(pairs_of(*make_topology("torus", world, two)).size(), 6U + 12U);
  EXPECT_THROW((void)make_topology("grid", world, Options::parse("rows: 5")), ConfigError);
}

TEST(StaticExp, HearsFromEveryPowerOfTwo) {
  const RankRound mine = rank_round(make_topology("static-exp", {.size = 10})->round(0), 3);
  EXPECT_EQ(mine.receive_from, (std::vector<int>{1, 2, 5, 9}));
  EXPECT_EQ(mine.send_to, (std::vector<int>{1, 4, 5, 7}));
  EXPECT_DOUBLE_EQ(mine.keep, 0.2);
  EXPECT_EQ(mine.take, std::vector<double>(4, 0.2));
}

TEST(DirectedOnePeerExp, IsExactForPowersOfTwoOnly) {
  for (const int size : {1, 2, 4, 8, 64}) {
    const auto topology = make_topology("directed-one-peer-exp", {.size = size});
    EXPECT_EQ(exact_after(*topology, size), topology->period()) << size;
  }
  EXPECT_EQ(exact_after(*make_topology("directed-one-peer-exp", {.size = 6}), 6), std::nullopt);
}

TEST(Hierarchical, AveragesNodesAndLetsThemMeet) {
  const World world{.size = 6, .node_size = 2};
  const auto topology =
      make_topology("hierarchical", world, Options::parse("leaders: ring, leaders_every: 2"));
  ASSERT_EQ(topology->period(), 6);
  const Round inside =
      complete_round({averaging_edge({0, 1}), averaging_edge({2, 3}), averaging_edge({4, 5})}, 6);
  EXPECT_EQ(topology->round(0), inside);
  EXPECT_EQ(topology->round(2), inside);
  const Round first = topology->round(1);
  EXPECT_EQ(first.node_size, 2);
  EXPECT_EQ(first.edges, complete_round({averaging_edge({0, 1})}, 3).edges);
  const RankRound mine = rank_round(first, 3);
  EXPECT_EQ(mine.send_to, (std::vector<int>{0})) << "node 1 talks to node 0";
  EXPECT_THROW((void)make_topology("hierarchical", world, Options::parse("leaders: one-peer-exp")),
               ConfigError);
}

}  // namespace
}  // namespace gossamer
