#include "topology/push_sum.hpp"

#include "test/topology/irregular.hpp"
#include "test/topology/worlds.hpp"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "topology/graph.hpp"
#include "topology/mixing.hpp"

namespace gossamer {
namespace {

RankRows start(int world_size) {
  RankRows x(world_size, 3);
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    for (Eigen::Index j = 0; j < x.cols(); ++j) {
      x(i, j) = std::sin(1.0 + static_cast<double>(3 * i + j));
    }
  }
  return x;
}

/// How far the rows are from the mean of `begin`.
double distance(const RankRows& x, const RankRows& begin) {
  return (x.rowwise() - begin.colwise().mean().eval()).cwiseAbs().maxCoeff();
}

TEST(PushSum, FindsTheMeanWhereOutDegreesDiffer) {
  for (int size = 3; size <= 12; ++size) {
    const RankRows begin = start(size);
    RankRows debiased = begin;
    RankRows plain = begin;
    PushSum push_sum(size);
    for (std::uint64_t k = 0; k < 400; ++k) {
      const Round round = irregular_round(size, k % 3);
      MixingOperator(round).apply(plain);
      MixingOperator(push_sum.advance(round)).apply(debiased);
    }
    EXPECT_LT(distance(debiased, begin), 1e-10) << size << " ranks";
    // Without it the same rounds miss the mean by far.
    EXPECT_GT(distance(plain, begin), 1e-2) << size << " ranks";
  }
}

// z = x / s for x <- A x, s <- A s, term by term.
TEST(PushSum, IsTheRatioOfTwoPlainSums) {
  constexpr int kSize = 7;
  RankRows z = start(kSize);
  RankRows x = z;
  RankRows s = RankRows::Ones(kSize, 1);
  PushSum push_sum(kSize);
  for (std::uint64_t k = 0; k < 20; ++k) {
    const Round round = irregular_round(kSize, k);
    MixingOperator(push_sum.advance(round)).apply(z);
    MixingOperator(round).apply(x);
    MixingOperator(round).apply(s);
    for (Eigen::Index i = 0; i < kSize; ++i) {
      EXPECT_NEAR(push_sum.weights()[static_cast<std::size_t>(i)], s(i, 0), 1e-12);
      for (Eigen::Index j = 0; j < z.cols(); ++j) EXPECT_NEAR(z(i, j), x(i, j) / s(i, 0), 1e-12);
    }
  }
}

TEST(PushSum, LeavesDoublyStochasticRoundsAsTheyAre) {
  for (const char* name : {"directed-one-peer-exp", "static-exp", "ring", "complete"}) {
    const auto topology = make_topology(name, {.size = 8});
    PushSum push_sum(8);
    for (std::int64_t k = 0; k < 6; ++k) {
      EXPECT_EQ(push_sum.advance(topology->round(k)), topology->round(k)) << name;
      EXPECT_EQ(push_sum.weights(), std::vector<double>(8, 1.0)) << name;
    }
  }
}

// Pairs and groups among ranks of different weights, as in `alternate: [from-file, complete]`.
TEST(PushSum, GoesThroughGroups) {
  constexpr int kSize = 6;
  const RankRows begin = start(kSize);
  RankRows z = begin;
  PushSum push_sum(kSize);
  MixingOperator(push_sum.advance(irregular_round(kSize, 1))).apply(z);
  const Round pairs =
      complete_round({averaging_edge({0, 1}), averaging_edge({2, 5}), averaging_edge({3, 4})}, 6);
  MixingOperator(push_sum.advance(pairs)).apply(z);
  EXPECT_GT(distance(z, begin), 1e-3);
  MixingOperator(push_sum.advance(complete_round({averaging_edge({0, 1, 2, 3, 4, 5})}, 6)))
      .apply(z);
  EXPECT_LT(distance(z, begin), 1e-12);
}

TEST(PushSum, WantsOneWeightPerNode) {
  PushSum push_sum(4);
  const Round nodes = two_level_round(complete_round({averaging_edge({0, 1})}, 2), 2);
  EXPECT_NO_THROW((void)push_sum.advance(nodes));
  (void)push_sum.advance(directed_round({{0, 1}, {1, 2}, {2, 3}, {3, 0}, {0, 2}}, 4));
  EXPECT_THROW((void)push_sum.advance(nodes), ConfigError);
}

// Directed nodes, each averaging inside: the mean over all ranks.
TEST(PushSum, WorksBetweenNodes) {
  constexpr int kSize = 12;
  const RankRows begin = start(kSize);
  RankRows z = begin;
  PushSum push_sum(kSize);
  for (int k = 0; k < 200; ++k) {
    MixingOperator(push_sum.advance(two_level_round(irregular_round(4, 9), 3))).apply(z);
  }
  EXPECT_LT(distance(z, begin), 1e-10);
}

}  // namespace
}  // namespace gossamer
