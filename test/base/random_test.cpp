#include "base/random.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

// The expected values come from an independent implementation: MT19937-64 by its definition, seeded
// with SplitMix64. They must never change, so that old runs stay repeatable.
TEST(Random, BitsAreTheDocumentedAlgorithm) {
  struct Case {
    std::uint64_t seed, stream, first, second;
  };
  for (const Case& c : {Case{0, 0, 0x05d44ada13a95d04U, 0x810afd3880ba8e41U},
                        Case{1, 0, 0xb3809256405c7cb0U, 0x2666add3f696c56eU},
                        Case{0, 1, 0xb95933d845f98fd4U, 0x8340e0ef65e7d8d6U},
                        Case{42, 7, 0xc38606e7a6812afaU, 0x17c85cc16c219290U}}) {
    Random random(c.seed, c.stream);
    EXPECT_EQ(random.bits(), c.first);
    EXPECT_EQ(random.bits(), c.second);
  }
}

template <class Draw>
void expect_draws(const std::array<double, 3>& wanted, Draw draw) {
  Random random(42);
  // The mathematical functions of two C libraries may differ in the last bit.
  for (const double value : wanted) EXPECT_NEAR(draw(random), value, 1e-14 * std::abs(value));
}

TEST(Random, DistributionsKeepTheirAlgorithms) {
  expect_draws({0.477318015008662, 0.9620574998357523, 0.29577851694125556},
               [](Random& r) { return r.uniform(); });
  expect_draws({1.1068894920974648, -0.8009237082602563, -0.19925370764526154},
               [](Random& r) { return r.normal(); });
  expect_draws({4.913369552810565, 2.4621228637854493, 0.7054460610665778},
               [](Random& r) { return r.gamma(3.0); });
  expect_draws({0.5776449123211677, 0.14359717994075402, 0.08306760042460998},
               [](Random& r) { return r.gamma(0.5); });
  expect_draws(
      {-1 + 4 * 0.477318015008662, -1 + 4 * 0.9620574998357523, -1 + 4 * 0.29577851694125556},
      [](Random& r) { return r.uniform(-1, 3); });
}

TEST(Random, BelowAndShuffleKeepTheirAlgorithms) {
  Random random(42);
  for (const std::int64_t wanted : {4, 0, 2, 9, 0, 6, 2, 6, 2, 2}) {
    EXPECT_EQ(random.below(10), wanted);
  }
  std::vector<int> items(10);
  std::iota(items.begin(), items.end(), 0);
  Random(42).shuffle(std::span(items));
  EXPECT_EQ(items, (std::vector<int>{7, 0, 9, 8, 1, 2, 3, 6, 5, 4}));
}

struct Moments {
  double mean = 0, variance = 0, least = std::numeric_limits<double>::infinity(),
         most = -std::numeric_limits<double>::infinity();
};

constexpr int kDraws = 200'000;

template <class Draw>
Moments moments_of(Draw draw) {
  Random random(7);
  std::vector<double> values(kDraws);
  Moments m;
  for (double& value : values) {
    value = draw(random);
    m.mean += value / kDraws;
    m.least = std::min(m.least, value);
    m.most = std::max(m.most, value);
  }
  for (const double value : values) m.variance += (value - m.mean) * (value - m.mean) / kDraws;
  return m;
}

/// Five standard errors of the mean of kDraws values.
double slack(double variance) { return 5.0 * std::sqrt(variance / kDraws); }

TEST(Random, UniformHasItsMoments) {
  const Moments m = moments_of([](Random& r) { return r.uniform(); });
  EXPECT_NEAR(m.mean, 0.5, slack(1.0 / 12));
  EXPECT_NEAR(m.variance, 1.0 / 12, 0.001);
  EXPECT_GE(m.least, 0.0);
  EXPECT_LT(m.least, 1e-3);
  EXPECT_LT(m.most, 1.0);
  EXPECT_GT(m.most, 1 - 1e-3);
}

TEST(Random, NormalHasItsMoments) {
  const Moments m = moments_of([](Random& r) { return r.normal(); });
  EXPECT_NEAR(m.mean, 0.0, slack(1.0));
  EXPECT_NEAR(m.variance, 1.0, 0.02);
  const Moments fourth = moments_of([](Random& r) { return std::pow(r.normal(), 4); });
  EXPECT_NEAR(fourth.mean, 3.0, slack(96.0));
}

TEST(Random, GammaHasItsMoments) {
  for (const double shape : {0.1, 0.5, 1.0, 2.5, 40.0}) {
    const Moments m = moments_of([shape](Random& r) { return r.gamma(shape); });
    EXPECT_NEAR(m.mean, shape, slack(shape)) << shape;
    // The fourth central moment is 3 shape (shape + 2).
    EXPECT_NEAR(m.variance, shape, slack(3 * shape * (shape + 2))) << shape;
    EXPECT_GE(m.least, 0.0) << shape;
  }
}

TEST(Random, BelowIsUniformForSmallBounds) {
  for (std::int64_t bound = 1; bound <= 9; ++bound) {
    Random random(3, static_cast<std::uint64_t>(bound));
    std::vector<double> counts(static_cast<std::size_t>(bound));
    for (int i = 0; i < kDraws; ++i) ++counts.at(static_cast<std::size_t>(random.below(bound)));
    const double share = 1.0 / static_cast<double>(bound);
    for (const double count : counts) {
      EXPECT_NEAR(count / kDraws, share, slack(share * (1 - share)) + 1e-12) << bound;
    }
  }
}

TEST(Random, BelowIsUnbiasedWhereARemainderWouldBe) {
  // 2^64 is 2 2/3 times this bound. A plain remainder would give the lower two thirds in three of
  // four draws.
  constexpr std::int64_t kThird = std::int64_t{1} << 61;
  Random random(11);
  double lower = 0;
  for (int i = 0; i < kDraws; ++i) {
    const std::int64_t value = random.below(3 * kThird);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 3 * kThird);
    if (value < 2 * kThird) ++lower;
  }
  EXPECT_NEAR(lower / kDraws, 2.0 / 3.0, slack(2.0 / 9.0));
}

TEST(Random, BelowTakesExtremeBounds) {
  Random random(5);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(random.below(1), 0);
    const std::int64_t value = random.below(kMost);
    EXPECT_TRUE(value >= 0 && value < kMost);
  }
}

TEST(Random, ShuffleIsUniform) {
  std::map<std::array<int, 4>, double> counts;
  Random random(13);
  for (int i = 0; i < kDraws; ++i) {
    std::array<int, 4> items = {0, 1, 2, 3};
    random.shuffle(std::span<int>(items));
    ++counts[items];
  }
  ASSERT_EQ(counts.size(), 24U);
  const double share = 1.0 / 24;
  for (const auto& [items, count] : counts) {
    EXPECT_NEAR(count / kDraws, share, slack(share * (1 - share)));
  }
}

TEST(Random, ShuffleTakesShortSpans) {
  Random random(1);
  std::vector<int> none;
  random.shuffle(std::span(none));
  std::vector<int> one = {5};
  random.shuffle(std::span(one));
  EXPECT_EQ(one, std::vector<int>{5});
}

TEST(Random, StreamsOfOneSeedDiffer) {
  std::vector<std::uint64_t> firsts;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    for (std::uint64_t stream = 0; stream < 30; ++stream) {
      firsts.push_back(Random(seed, stream).bits());
    }
  }
  std::ranges::sort(firsts);
  EXPECT_EQ(std::ranges::adjacent_find(firsts), firsts.end());
}

TEST(Random, RefusesWhatHasNoMeaning) {
  Random random(1);
  EXPECT_THROW((void)random.below(0), std::logic_error);
  EXPECT_THROW((void)random.below(-1), std::logic_error);
  EXPECT_THROW((void)random.gamma(0.0), std::logic_error);
  EXPECT_THROW((void)random.gamma(-1.0), std::logic_error);
  EXPECT_THROW((void)random.gamma(std::numeric_limits<double>::quiet_NaN()), std::logic_error);
}

}  // namespace
}  // namespace gossamer
