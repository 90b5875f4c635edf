// Tests the codec int8 against its definition (optim/codecs/grid_codec.hpp), in exact arithmetic
// where that is possible.

#include "test/optim/parameters.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.hpp"
#include "optim/codec.hpp"

namespace gossamer {
namespace {

const MixingCodec& int8() { return *find_codec("int8")->mixing(); }

Buffer encoded(std::vector<double> x, const Grid& grid) {
  Buffer wire(std::ssize(x), DType::kUInt8);
  int8().encode(wire.block(), block_of(std::span(x)), grid, best_simd_path());
  return wire;
}

struct Difference {
  std::vector<double> values;
  DifferenceRange range;
};

/// What a rank with the values `own` adds when it hears `heard`, with weight 1.
Difference difference(const std::vector<double>& heard, const std::vector<double>& own,
                      const Grid& grid) {
  const Buffer theirs = encoded(heard, grid);
  const Buffer ours = encoded(own, grid);
  Difference found{.values = std::vector<double>(own.size()), .range = {}};
  found.range = int8().add_difference(block_of(std::span(found.values)), {theirs.block(), 1.0},
                                      ours.block(), grid, best_simd_path());
  return found;
}

TEST(Int8, SendsDifferencesToTheNextPointOfTheGrid) {
  Random random(1, 0);
  std::vector<double> own(1000);
  std::vector<double> heard(1000);
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i] = random.uniform(-1000.0, 1000.0);
    heard[i] = own[i] + random.uniform(-15.7, 15.7);
  }
  const Grid grid{.exponent = -3, .seed = 77};
  const Difference found = difference(heard, own, grid);
  double largest = 0.0;
  std::int64_t num_wide = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const double steps = found.values[i] * 8.0;
    EXPECT_EQ(steps, std::nearbyint(steps)) << i;
    EXPECT_LT(std::abs(found.values[i] - (heard[i] - own[i])), 0.125) << i;
    largest = std::max(largest, std::abs(steps));
    num_wide += std::abs(steps) >= 64.0 ? 1 : 0;
  }
  EXPECT_EQ(found.range.largest_steps, largest);
  EXPECT_EQ(found.range.num_wide, num_wide);
  EXPECT_GT(num_wide, 300);
}

TEST(Int8, ExpectsTheTrueDifference) {
  // The rounding of a round is Bernoulli distributed, so the mean over n rounds has a standard
  // deviation of at most half a step / sqrt(n).
  const std::vector<double> own = {0.0, 0.3, -5.21, 100.01, 0.999, 64.5, 1e-4, -0.0001};
  const std::vector<double> heard = {0.1, 0.35, -4.0, 90.02, 1.001, 64.5, -1e-4, 0.9};
  constexpr int kRounds = 20'000;
  std::vector<double> sum(own.size());
  for (int k = 0; k < kRounds; ++k) {
    const Difference found =
        difference(heard, own, {.exponent = -2, .seed = static_cast<std::uint64_t>(k)});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += found.values[i];
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    EXPECT_NEAR(sum[i] / kRounds, heard[i] - own[i], 5.0 * 0.125 / std::sqrt(kRounds)) << i;
  }
}

TEST(Int8, RoundsNeighboursAndRoundsApart) {
  // Differences of half a step go up in half of the places, whatever the round.
  const std::vector<double> own(4096);
  const std::vector<double> heard(4096, 0.5);
  std::vector<std::vector<double>> rounds;
  for (const std::uint64_t seed : {0U, 1U, 2U, 3U}) {
    rounds.push_back(difference(heard, own, {.exponent = 0, .seed = seed}).values);
    double sum = 0.0;
    for (const double value : rounds.back()) sum += value;
    EXPECT_NEAR(sum, 2048.0, 5.0 * 32.0);
  }
  // Two rounds agree in half of the places.
  for (std::size_t r = 1; r < rounds.size(); ++r) {
    int num_equal = 0;
    for (std::size_t i = 0; i < own.size(); ++i) num_equal += rounds[r][i] == rounds[0][i] ? 1 : 0;
    EXPECT_NEAR(num_equal, 2048, 5 * 32);
  }
}

TEST(Int8, GivesOppositeDifferencesHoweverFarApart) {
  Random random(2, 0);
  std::vector<double> own(2000);
  std::vector<double> heard(2000);
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i] = random.uniform(-1.0, 1.0);
    heard[i] = own[i] + std::ldexp(random.uniform(-1.0, 1.0), static_cast<int>(i % 40) - 5);
  }
  own[0] = std::numeric_limits<double>::quiet_NaN();
  own[1] = -std::numeric_limits<double>::infinity();
  heard[2] = std::numeric_limits<double>::infinity();
  own[3] = 1e300;
  for (const int exponent : {-60, -7, 0, 40}) {
    const Grid grid{.exponent = exponent, .seed = 9};
    const Difference there = difference(heard, own, grid);
    const Difference back = difference(own, heard, grid);
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_EQ(there.values[i], -back.values[i]) << i;
      EXPECT_LE(std::abs(there.values[i]), std::ldexp(127.0, exponent)) << i;
    }
    EXPECT_EQ(there.range.largest_steps, back.range.largest_steps);
    EXPECT_EQ(there.range.num_wide, back.range.num_wide);
  }
}

TEST(Int8, EqualValuesHaveNoDifference) {
  const std::vector<double> x = {0.0, -0.0, 1.0, -1e-30, 1e30, 12345.678};
  const Difference found = difference(x, x, {.exponent = -20, .seed = 3});
  EXPECT_EQ(found.values, std::vector<double>(x.size()));
  EXPECT_EQ(found.range.largest_steps, 0);
}

TEST(Int8, EncodesFloatsAsTheirGridPoints) {
  // Small whole numbers of steps are exact in float32, so both types give the same bytes.
  std::vector<float> x;
  for (int i = -2000; i < 2000; ++i) x.push_back(static_cast<float>(i) * 0.25F);
  const Grid grid{.exponent = -2, .seed = 5};
  Buffer wire(std::ssize(x), DType::kUInt8);
  int8().encode(wire.block(), block_of(std::span(x)), grid, best_simd_path());
  const Buffer wide = encoded(std::vector<double>(x.begin(), x.end()), grid);
  EXPECT_TRUE(std::ranges::equal(wire.block().as<std::uint8_t>(), wide.block().as<std::uint8_t>()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto steps = static_cast<std::int64_t>(x[i] * 4.0F);
    EXPECT_EQ(wire.block().as<std::uint8_t>()[i], static_cast<std::uint8_t>(steps)) << x[i];
  }
}

/// What a rank adds to a sum when it hears `x`.
std::vector<float> summed(std::vector<float> x) {
  const Buffer wire(int8().summand_bytes(std::ssize(x)), DType::kUInt8);
  int8().encode_summand(wire.block(), block_of(std::span(x)), best_simd_path());
  std::ranges::fill(x, 0.0F);
  int8().add_summand(block_of(std::span(x)), wire.block(), best_simd_path());
  return x;
}

TEST(Int8, SumsMultiplesOfTheLargestValue) {
  // Two parts with scales of their own: 1/4 and 2^-20. Ties go to even numbers.
  std::vector<float> x(2048, 0.0F);
  std::ranges::copy(std::vector<float>{31.75F, -31.75F, 0.125F, 0.375F, -0.375F, 0.12F, 7.0F},
                    x.begin());
  x[1024] = std::ldexp(-127.0F, -20);
  x[1025] = std::ldexp(2.6F, -20);
  const std::vector<float> found = summed(x);
  EXPECT_EQ(std::vector<float>(found.begin(), found.begin() + 7),
            (std::vector<float>{31.75F, -31.75F, 0.0F, 0.5F, -0.5F, 0.0F, 7.0F}));
  EXPECT_EQ(found[1024], x[1024]);
  EXPECT_EQ(found[1025], std::ldexp(3.0F, -20));
}

TEST(Int8, SumsBlocksOfEverySize) {
  for (int exponent = -149; exponent < 128; ++exponent) {
    const float size = std::ldexp(1.0F, exponent);
    const std::vector<float> found = summed({size, -size, size / 2, 0.0F});
    // Below this size all values count as 0.
    const float expected = size < 1.5e-36F ? 0.0F : size;
    EXPECT_NEAR(found[0], expected, size * 1e-6F) << exponent;
    EXPECT_EQ(found[1], -found[0]) << exponent;
    EXPECT_NEAR(found[2], expected / 2, size / 253) << exponent;
    EXPECT_EQ(found[3], 0.0F) << exponent;
  }
}

}  // namespace
}  // namespace gossamer
