#include "gossamer/topology/mixing.hpp"

#include "worlds.hpp"

#include <cmath>
#include <numbers>
#include <stdexcept>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

constexpr double kTolerance = 1e-12;

std::unique_ptr<Topology> build(std::string_view name, int size, int local = 1) {
  return TopologyCase{name, {.size = size, .local_size = local}}.build();
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

class EveryTopologyMatrix : public testing::TestWithParam<TopologyCase> {};
INSTANTIATE_TEST_SUITE_P(Worlds, EveryTopologyMatrix, testing::ValuesIn(topology_cases(true)),
                         test_name);

TEST_P(EveryTopologyMatrix, IsDoublyStochastic) {
  const int size = GetParam().world.size;
  const auto topology = GetParam().build();
  const Eigen::VectorXd ones = Eigen::VectorXd::Ones(size);
  for (std::int64_t k = 0; k < *topology->period(); ++k) {
    const Eigen::MatrixXd w = mixing_matrix(topology->round(k), size);
    EXPECT_GE(w.minCoeff(), 0.0) << "round " << k;
    EXPECT_LE((w * ones - ones).cwiseAbs().maxCoeff(), kTolerance) << "round " << k;
    EXPECT_LE((w.transpose() * ones - ones).cwiseAbs().maxCoeff(), kTolerance) << "round " << k;
  }
}

TEST_P(EveryTopologyMatrix, ReachesConsensus) {
  const auto gap = spectral_gap(*GetParam().build(), GetParam().world.size);
  ASSERT_TRUE(gap.has_value());
  EXPECT_GT(*gap, 1e-3);
  EXPECT_LE(*gap, 1.0);
}

TEST_P(EveryTopologyMatrix, HasGapOneWhereItIsExactAfterAPeriod) {
  const auto topology = GetParam().build();
  const int size = GetParam().world.size;
  const auto exact = exact_after(*topology, size);
  if (exact) {
    EXPECT_EQ(spectral_gap(*topology, size), 1.0);
  } else {
    EXPECT_EQ(GetParam().topology, "ring");
  }
}

TEST(MixingMatrix, HoldsTheWeightsOfEveryEdge) {
  const Round round{{Edge{{0, 3}, 0.7}, Edge{{1, 2, 4}, 0.4}, Edge{{5}, 1.0}}};
  Eigen::MatrixXd expected(6, 6);
  expected << 0.7, 0.0, 0.0, 0.3, 0.0, 0.0,  //
      0.0, 0.4, 0.3, 0.0, 0.3, 0.0,          //
      0.0, 0.3, 0.4, 0.0, 0.3, 0.0,          //
      0.3, 0.0, 0.0, 0.7, 0.0, 0.0,          //
      0.0, 0.3, 0.3, 0.0, 0.4, 0.0,          //
      0.0, 0.0, 0.0, 0.0, 0.0, 1.0;
  EXPECT_LE((mixing_matrix(round, 6) - expected).cwiseAbs().maxCoeff(), kTolerance);
}

TEST(MixingMatrix, RefusesABrokenRound) {
  EXPECT_THROW(mixing_matrix({{Edge{{0, 1}, 0.5}}}, 3), std::logic_error);
  EXPECT_THROW(mixing_matrix({{Edge{{0, 4}, 0.5}}}, 2), std::logic_error);
}

TEST(PeriodProduct, AppliesLaterRoundsFromTheLeft) {
  const auto ring = build("ring", 6);
  const Eigen::MatrixXd first = mixing_matrix(ring->round(0), 6);
  const Eigen::MatrixXd second = mixing_matrix(ring->round(1), 6);
  const Eigen::MatrixXd product = period_product(*ring, 6, 2);
  EXPECT_LE((product - second * first).cwiseAbs().maxCoeff(), kTolerance);
  EXPECT_GT((product - first * second).cwiseAbs().maxCoeff(), 0.1);
  EXPECT_EQ(period_product(*ring, 6, 0), Eigen::MatrixXd::Identity(6, 6));
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
  for (const std::string& name : topology_names()) {
    EXPECT_EQ(exact_after(*build(name, 1), 1), 1) << name;
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

}  // namespace
}  // namespace gossamer
