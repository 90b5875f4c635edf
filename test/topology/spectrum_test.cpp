#include "topology/spectrum.hpp"

#include "test/support/mixing_matrix.hpp"
#include "test/topology/worlds.hpp"

#include <cmath>
#include <numbers>

#include <Eigen/Eigenvalues>
#include <gtest/gtest.h>

#include "topology/mixing.hpp"
#include "topology/push_sum.hpp"

namespace gossamer {
namespace {

constexpr double kTolerance = 1e-12;

std::unique_ptr<Topology> build(std::string_view name, int size, int local = 1,
                                std::string_view options = "") {
  return make_topology(name, {.size = size, .node_size = local}, Options::parse(options));
}

/// Pairs drawn anew in every round: what a topology without a period looks like.
class Endless final : public Topology {
 public:
  [[nodiscard]] std::string name() const override { return "endless"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return std::nullopt; }
  [[nodiscard]] Round round(std::int64_t k) const override {
    return complete_round({averaging_edge({static_cast<int>(k % 3), 3})}, 4);
  }
};

/// Two halves that never meet.
std::unique_ptr<Topology> two_islands() {
  return make_periodic("islands",
                       {complete_round({averaging_edge({0, 1}), averaging_edge({2, 3})}, 4)});
}

class EveryTopologySpectrum : public TopologyTest {};
INSTANTIATE_TEST_SUITE_P(Topologies, EveryTopologySpectrum, testing::ValuesIn(topologies_to_test()),
                         test_name);

TEST_P(EveryTopologySpectrum, ReachesConsensus) {
  for_each_case(true, [](const TopologyCase& c) {
    const auto topology = c.build();
    if (!topology->period()) return;
    const auto gap = spectral_gap(*topology, c.world.size);
    ASSERT_TRUE(gap.has_value());
    EXPECT_GT(*gap, 1e-3);
    EXPECT_LE(*gap, 1.0);
  });
}

TEST_P(EveryTopologySpectrum, HasGapOneWhereItIsExactAfterAPeriod) {
  for_each_case(true, [](const TopologyCase& c) {
    const auto topology = c.build();
    if (!topology->period()) return;
    const int size = c.world.size;
    const auto exact = exact_after(*topology, size);
    if (exact) {
      EXPECT_EQ(spectral_gap(*topology, size), 1.0);
    } else {
      EXPECT_LT(*spectral_gap(*topology, size), 1.0);
    }
  });
}

/// ||M(k) - J||_2 from whole matrices.
double dense_factor(const Topology& topology, int size, std::int64_t num_rounds) {
  PushSum push_sum(size);
  Eigen::MatrixXd product = Eigen::MatrixXd::Identity(size, size);
  for (std::int64_t k = 0; k < num_rounds; ++k) {
    Round round = topology.round(k);
    if (topology.directed()) round = push_sum.advance(round);
    RankRows matrix = RankRows::Identity(size, size);
    MixingOperator(round).apply(matrix);
    product = matrix * product;
  }
  const Eigen::MatrixXd rest = product.array() - 1.0 / size;
  return rest.jacobiSvd().singularValues()[0];
}

TEST_P(EveryTopologySpectrum, CountsTheRoundsToAThousandth) {
  for_each_case(true, [](const TopologyCase& c) {
    const auto topology = c.build();
    const int size = c.world.size;
    const auto count = rounds_to(*topology, size);
    ASSERT_TRUE(count.has_value());
    EXPECT_FALSE(count->estimated);
    EXPECT_LE(dense_factor(*topology, size, count->rounds), 1e-3);
    // Norms of directed rounds may rise and fall; then it is one of the places where they cross.
    EXPECT_GT(size == 1 ? 1.0 : dense_factor(*topology, size, count->rounds - 1), 1e-3);
  });
}

TEST(SpectralGap, IsOneForTheCompleteGraph) {
  for (int size = 1; size <= 17; ++size)
    EXPECT_EQ(spectral_gap(*build("complete", size), size), 1.0);
}

TEST(SpectralGap, IsOneForOnePeerExp) {
  for (const int size : {1, 2, 4, 8, 16, 64}) {
    EXPECT_EQ(spectral_gap(*build("one-peer-exp", size), size), 1.0) << size;
  }
}

// The n/2 pairs of the first round form a circulant matrix with 1/2 on the diagonal and 1/4 beside
// it; its second eigenvalue is (1 + cos(4 pi / n)) / 2 = cos^2(2 pi / n).
TEST(SpectralGap, OfAnEvenRingIsSineSquared) {
  EXPECT_EQ(spectral_gap(*build("ring", 2), 2), 1.0);
  for (int size = 4; size <= 32; size += 2) {
    const double sine = std::sin(2.0 * std::numbers::pi / size);
    EXPECT_NEAR(spectral_gap(*build("ring", size), size).value(), sine * sine, 1e-9) << size;
  }
}

// Each of the three rounds projects the plane of differences on a line, and these lines stand at
// 120 degrees to each other: cos^3.
TEST(SpectralGap, OfThreeRanksInARingIsSevenEighths) {
  EXPECT_NEAR(spectral_gap(*build("ring", 3), 3).value(), 7.0 / 8.0, kTolerance);
}

TEST(SpectralGap, IsZeroWhereRanksNeverMeet) {
  EXPECT_NEAR(spectral_gap(*two_islands(), 4).value(), 0.0, kTolerance);
}

TEST(SpectralGap, IsUnknownWithoutAPeriod) { EXPECT_EQ(spectral_gap(Endless(), 4), std::nullopt); }

TEST(ExactAfter, CountsRounds) {
  EXPECT_EQ(exact_after(*build("complete", 7), 7), 1);
  EXPECT_EQ(exact_after(*build("one-peer-exp", 8), 8), 3);
  EXPECT_EQ(exact_after(*build("one-peer-exp", 16), 16), 4);
  EXPECT_EQ(exact_after(*build("ring", 2), 2), 1);
  EXPECT_EQ(exact_after(*build("ring", 4), 4), 2);
  EXPECT_EQ(exact_after(*build("alternating-exp-ring", 8, 2), 8), 4);
  EXPECT_EQ(exact_after(*build("alternating-exp-ring", 12, 3), 12), 4);
  EXPECT_EQ(exact_after(*build("alternating-exp-ring", 10, 5), 10), 2);
}

TEST(ExactAfter, IsOneForOneRank) {
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.needs_options) continue;
    EXPECT_EQ(exact_after(*build(entry.name, 1), 1), 1) << entry.name;
  }
}

TEST(ExactAfter, IsNothingWhereTheMeanIsNeverReached) {
  EXPECT_EQ(exact_after(*build("ring", 6), 6), std::nullopt);
  EXPECT_EQ(exact_after(*two_islands(), 4), std::nullopt);
  EXPECT_EQ(exact_after(Endless(), 4), std::nullopt);
}

TEST(ExactAfter, LooksNoFurtherThanAllowed) {
  EXPECT_EQ(exact_after(*build("one-peer-exp", 8), 8, 2), std::nullopt);
  EXPECT_EQ(exact_after(*build("one-peer-exp", 8), 8, 3), 3);
}

// The sparse way, above 128 ranks, against the formula and against dense eigenvalues.
TEST(SpectralGap, OfManyRanksIsTheSameAsOfFew) {
  for (const int size : {130, 256, 1024}) {
    const double sine = std::sin(2.0 * std::numbers::pi / size);
    EXPECT_NEAR(spectral_gap(*build("ring", size), size).value(), sine * sine, 1e-9) << size;
  }
  for (const char* name :
       {"torus", "grid", "static-ring", "static-exp", "directed-one-peer-exp", "ring", "base-k"}) {
    const int size = 135;
    const auto topology = build(name, size);
    const Eigen::MatrixXd product = period_product(*topology, size, *topology->period());
    const Eigen::MatrixXd rest = product.array() - 1.0 / size;
    const double radius = rest.eigenvalues().cwiseAbs().maxCoeff();
    EXPECT_NEAR(spectral_gap(*topology, size).value(), 1.0 - radius, 1e-7) << name;
  }
}

TEST(DistanceFactor, OfManyRanksIsTheSameAsOfFew) {
  for (const char* name : {"torus", "static-exp", "directed-one-peer-exp", "random-matching"}) {
    const auto topology = build(name, 100);
    for (const std::int64_t k : {1, 5, 20}) {
      EXPECT_NEAR(distance_factor(*topology, 100, k), dense_factor(*topology, 100, k), 1e-6)
          << name << ", " << k;
    }
  }
}

std::optional<double> consensus_rate(const Topology& topology, int size) {
  return consensus_speed(topology, size).consensus_rate;
}

TEST(ConsensusRate, IsTheRootOfTheSpectralRadius) {
  const auto ring = build("ring", 8);
  EXPECT_NEAR(consensus_rate(*ring, 8).value(), std::cos(2.0 * std::numbers::pi / 8), 1e-9);
  EXPECT_EQ(consensus_rate(*build("base-k", 7), 7), 0.0);
  const double random = consensus_rate(*build("random-matching", 16), 16).value();
  EXPECT_GT(random, 0.4);
  EXPECT_LT(random, 0.95);
}

TEST(ConsensusSpeed, IsWhatTheSingleFunctionsSay) {
  for (const char* name : {"ring", "base-k", "random-matching", "static-exp"}) {
    const auto topology = build(name, 12);
    const ConsensusSpeed speed = consensus_speed(*topology, 12);
    EXPECT_EQ(speed.spectral_gap, spectral_gap(*topology, 12)) << name;
    EXPECT_EQ(speed.exact_after, exact_after(*topology, 12)) << name;
    EXPECT_EQ(speed.rounds_to_thousandth->rounds, rounds_to(*topology, 12)->rounds) << name;
  }
}

TEST(RoundsTo, GoesOnAtTheRateOfTheSpectrum) {
  const auto ring = build("ring", 1024);
  const auto count = rounds_to(*ring, 1024);
  ASSERT_TRUE(count.has_value());
  EXPECT_TRUE(count->estimated);
  const double sine = std::sin(2.0 * std::numbers::pi / 1024);
  const double expected = 2.0 * std::log(1e-3) / std::log1p(-sine * sine);
  EXPECT_NEAR(static_cast<double>(count->rounds), expected, 0.001 * expected);
}

TEST(RoundsTo, IsNothingWhereRanksNeverMeet) {
  EXPECT_EQ(rounds_to(*two_islands(), 4), std::nullopt);
}

// Norms that the iteration has to find are 0 here.
TEST(Spectrum, OfManyRanksThatAreExact) {
  for (const char* name : {"complete", "one-peer-exp", "base-k", "directed-one-peer-exp"}) {
    const auto topology = build(name, 256);
    const ConsensusSpeed speed = consensus_speed(*topology, 256);
    EXPECT_EQ(speed.spectral_gap, 1.0) << name;
    EXPECT_EQ(speed.consensus_rate, 0.0) << name;
    EXPECT_EQ(speed.exact_after, topology->period()) << name;
    EXPECT_EQ(speed.rounds_to_thousandth->rounds, *topology->period()) << name;
  }
}

// What would need memory for all rounds of a long period, or for n times n numbers, is left out.
TEST(Spectrum, OfManyRanksWithALongPeriodIsLeftOut) {
  const auto ring = build("ring", 16'385);
  EXPECT_EQ(spectral_gap(*ring, 16'385), std::nullopt);
  EXPECT_EQ(rounds_to(*ring, 16'385), std::nullopt);
  EXPECT_EQ(exact_after(*ring, 16'385, 8), std::nullopt);
  EXPECT_EQ(exact_after(*build("complete", 1'000'000), 1'000'000), 1);
}

}  // namespace
}  // namespace gossamer
