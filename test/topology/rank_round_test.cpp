#include "topology/rank_round.hpp"

#include "test/support/mixing_matrix.hpp"
#include "test/topology/irregular.hpp"
#include "test/topology/worlds.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "topology/mixing.hpp"

namespace gossamer {
namespace {

using Kind = RankRound::Kind;

TEST(RankRound, OfEdges) {
  const Round round{.edges = {{{0, 3}, 0.7}, {{1, 2, 4}, 0.4}, {{5}, 1.0}}};
  const RankRound pair = rank_round(round, 3);
  EXPECT_EQ(pair.kind, Kind::kPair);
  EXPECT_EQ(pair.send_to, (std::vector<int>{0}));
  EXPECT_EQ(pair.receive_from, (std::vector<int>{0}));
  EXPECT_DOUBLE_EQ(pair.keep, 0.7);
  EXPECT_DOUBLE_EQ(pair.take.at(0), 0.3);
  const RankRound group = rank_round(round, 2);
  EXPECT_EQ(group.kind, Kind::kGroup);
  EXPECT_EQ(group.group, (std::vector<int>{1, 2, 4}));
  // The sum that arrives holds this rank's own value: 0.4 = 0.1 + 0.3.
  EXPECT_DOUBLE_EQ(group.keep, 0.1);
  EXPECT_DOUBLE_EQ(group.take.at(0), 0.3);
  EXPECT_EQ(rank_round(round, 5), RankRound{});
  EXPECT_THROW((void)rank_round(round, 6), std::logic_error);
}

TEST(RankRound, OfArcs) {
  const Round round{
      .arcs = {{0, 0, 0.5}, {2, 0, 0.25}, {0, 1, 0.5}, {1, 1, 0.5}, {1, 2, 0.5}, {2, 2, 0.75}}};
  const RankRound mine = rank_round(round, 1);
  EXPECT_EQ(mine.kind, Kind::kNeighbors);
  EXPECT_EQ(mine.send_to, (std::vector<int>{2}));
  EXPECT_EQ(mine.receive_from, (std::vector<int>{0}));
  EXPECT_EQ(mine.keep, 0.5);
  EXPECT_EQ(mine.take, (std::vector<double>{0.5}));
  const Round alone{.arcs = {{0, 0, 1.0}}};
  EXPECT_EQ(rank_round(alone, 0).kind, Kind::kIdle);
}

TEST(RankRound, OfTwoLevelsSpeaksOfNodes) {
  const Round round = two_level_round({.edges = {averaging_edge({0, 1})}}, 3);
  for (const int rank : {3, 4, 5}) {
    const RankRound mine = rank_round(round, rank);
    EXPECT_EQ(mine.send_to, (std::vector<int>{0})) << rank;
    EXPECT_EQ(mine.node_size, 3) << rank;
  }
}

TEST(BytesSent, AreThoseOfTheCheapestKnownWay) {
  EXPECT_EQ(exchange_bytes(100, 1), 0.0);
  EXPECT_EQ(exchange_bytes(100, 2), 100.0);
  EXPECT_EQ(exchange_bytes(100, 4), 150.0);
  const Round both{.edges = {{{0, 1}, 0.5}, averaging_edge({2, 3, 4, 5}), averaging_edge({6})}};
  EXPECT_EQ(bytes_sent(rank_round(both, 1), 1, 100), 100.0);
  EXPECT_EQ(bytes_sent(rank_round(both, 4), 4, 100), 150.0);
  EXPECT_EQ(bytes_sent(rank_round(both, 6), 6, 100), 0.0);
  const Round nodes = two_level_round({.edges = {averaging_edge({0, 1}), averaging_edge({2})}}, 4);
  EXPECT_EQ(bytes_sent(rank_round(nodes, 0), 0, 100), 150.0 + 100.0 + 100.0) << "leads";
  EXPECT_EQ(bytes_sent(rank_round(nodes, 1), 1, 100), 150.0);
  EXPECT_EQ(bytes_sent(rank_round(nodes, 8), 8, 100), 150.0) << "its node meets none";
}

class EveryTraffic : public TopologyTest {};
INSTANTIATE_TEST_SUITE_P(Topologies, EveryTraffic, testing::ValuesIn(topologies_to_test()),
                         test_name);

/// The ranks (in two levels: nodes) that a rank talks to in a round: the other members of its
/// group, or the peers it sends to or hears from, whichever are more.
std::int64_t degree(const RankRound& round) {
  if (round.kind == RankRound::Kind::kGroup) return std::ssize(round.group) - 1;
  return std::max(std::ssize(round.send_to), std::ssize(round.receive_from));
}

void expect_traffic(const Round& round, int world_size) {
  const RoundTraffic traffic = round_traffic(round, world_size, 1000);
  double sum = 0.0;
  double most = 0.0;
  std::int64_t largest = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const RankRound mine = rank_round(round, rank);
    sum += bytes_sent(mine, rank, 1000);
    most = std::max(most, bytes_sent(mine, rank, 1000));
    largest = std::max(largest, degree(mine));
  }
  EXPECT_NEAR(traffic.mean_bytes, sum / world_size, 1e-9);
  EXPECT_NEAR(traffic.max_bytes, most, 1e-9);
  EXPECT_EQ(traffic.max_degree, largest);
}

TEST_P(EveryTraffic, IsTheSumOverItsRanks) {
  for_each_case(true, [](const TopologyCase& c) {
    const auto topology = c.build();
    for (std::int64_t k = 0; k < topology->period().value_or(5); ++k) {
      expect_traffic(topology->round(k), c.world.size);
    }
  });
}

TEST(RoundTraffic, CountsUnevenRounds) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    expect_traffic(irregular_round(9, seed), 9);
    expect_traffic(two_level_round(irregular_round(5, seed), 2), 10);
  }
}

// One level, and the same matrix.
void expect_flat(const Round& round, int world_size) {
  const Round flat = flat_round(round, world_size);
  EXPECT_EQ(flat.node_size, 1);
  RankRows expected = RankRows::Identity(world_size, world_size);
  MixingOperator(round).apply(expected);
  RankRows matrix = RankRows::Identity(world_size, world_size);
  MixingOperator(flat).apply(matrix);
  EXPECT_LE((matrix - expected).cwiseAbs().maxCoeff(), 1e-15);
  // Ranks that sit out stand in edges beside arcs.
  for (const Edge& edge : flat.edges) EXPECT_TRUE(flat.arcs.empty() || edge.ranks.size() == 1);
}

TEST(FlatRound, IsTheSameRound) {
  expect_flat(complete_round({averaging_edge({0, 2})}, 3), 3);
  expect_flat(two_level_round(complete_round({averaging_edge({0, 2})}, 3), 2), 6);
  expect_flat(two_level_round({.edges = {{{0, 1}, 0.8}, {{2}, 1.0}}}, 2), 6);
  expect_flat(two_level_round(irregular_round(4, 1), 3), 12);
  Round mixed = complete_round({averaging_edge({3, 4, 5})}, 7, irregular_round(3, 2).arcs);
  expect_flat(mixed, 7);
  EXPECT_TRUE(flat_round(two_level_round({.edges = {averaging_edge({0, 1})}}, 2), 4).arcs.empty());
}

TEST(WithArcsForGroups, KeepsTheMatrixAndReplacesOnlySmallGroups) {
  for (const TopologyCase& c : topology_cases(true)) {
    const auto topology = c.build();
    for (std::int64_t k = 0; k < std::min<std::int64_t>(topology->period().value_or(6), 6); ++k) {
      const Round round = topology->round(k);
      for (const std::int64_t most : {0, 2, 3, 5, 100}) {
        SCOPED_TRACE(concat(to_string(c), ", round ", k, ", ", most));
        const Round changed = with_arcs_for_groups(round, most);
        check_round(changed, c.world.size, topology->directed());
        EXPECT_LE((mixing_matrix(changed, c.world.size, topology->directed()) -
                   mixing_matrix(round, c.world.size, topology->directed()))
                      .cwiseAbs()
                      .maxCoeff(),
                  1e-15);
        for (const Edge& edge : changed.edges) {
          EXPECT_TRUE(edge.ranks.size() <= 2 || std::ssize(edge.ranks) > most);
        }
        EXPECT_TRUE(most > 2 || changed == round);
      }
    }
  }
}

}  // namespace
}  // namespace gossamer
