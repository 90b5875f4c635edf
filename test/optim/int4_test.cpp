// Tests the codec int4 against its definition (optim/codecs/grid_codec.hpp). int8_test.cpp tests
// what both have in common: the pseudo-random numbers, and sums.

#include "test/optim/parameters.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.hpp"
#include "optim/codec.hpp"

namespace gossamer {
namespace {

const MixingCodec& int4() { return *find_codec("int4")->mixing(); }

/// Numbers on a grid of whole numbers, so that nothing is rounded.
std::vector<std::uint8_t> bytes_of(std::vector<double> x) {
  const Buffer wire(int4().encoded_bytes(std::ssize(x)), DType::kUInt8);
  int4().encode(wire.block(), block_of(std::span(x)), Grid{}, best_simd_path());
  const auto bytes = wire.block().as<std::uint8_t>();
  return {bytes.begin(), bytes.end()};
}

TEST(Int4, PacksTwoNumbersInAByte) {
  EXPECT_EQ(bytes_of({}), std::vector<std::uint8_t>());
  EXPECT_EQ(bytes_of({3.0}), std::vector<std::uint8_t>{0x03});
  EXPECT_EQ(bytes_of({3.0, 10.0}), std::vector<std::uint8_t>{0xa3});
  // Modulo 16.
  EXPECT_EQ(bytes_of({17.0, -1.0, -16.0}), (std::vector<std::uint8_t>{0xf1, 0x00}));
  EXPECT_EQ(bytes_of(std::vector<double>(3001, 5.0)).size(), 1501U);
  EXPECT_EQ(bytes_of(std::vector<double>(3001, 5.0))[700], 0x55);
  EXPECT_EQ(bytes_of(std::vector<double>(3001, 5.0))[1500], 0x05);
}

TEST(Int4, FindsDifferencesOfUpToSevenSteps) {
  for (const std::int64_t numel : {1, 2, 7, 1023, 1025, 3001}) {
    for (int steps = -9; steps <= 9; ++steps) {
      const auto count = static_cast<std::size_t>(numel);
      std::vector<double> own(count);
      std::vector<double> heard(count);
      for (std::size_t i = 0; i < count; ++i) {
        own[i] = 0.25 * (static_cast<double>(i % 40) - 20.0);
        heard[i] = own[i] + 0.25 * steps;
      }
      const Grid grid{.exponent = -2, .seed = 4};
      const Buffer ours(int4().encoded_bytes(numel), DType::kUInt8);
      const Buffer theirs(int4().encoded_bytes(numel), DType::kUInt8);
      int4().encode(ours.block(), block_of(std::span(own)), grid, best_simd_path());
      int4().encode(theirs.block(), block_of(std::span(heard)), grid, best_simd_path());
      std::vector<double> found(count);
      const DifferenceRange range = int4().add_difference(
          block_of(std::span(found)), {theirs.block(), 0.5}, ours.block(), grid, best_simd_path());
      // Beyond 7 steps a difference looks like another one; 8 steps look like none.
      const int seen = steps == -8 || steps == 8 ? 0 : steps > 8 ? -7 : steps < -8 ? 7 : steps;
      EXPECT_EQ(found, std::vector<double>(count, 0.125 * seen)) << numel << ", " << steps;
      EXPECT_EQ(range.largest_steps, std::abs(steps) == 9 ? 7 : std::abs(steps));
      EXPECT_EQ(range.num_wide, std::abs(steps) >= 4 ? numel : 0) << numel << ", " << steps;
    }
  }
}

TEST(Int4, ExpectsTheTrueDifference) {
  std::vector<double> own = {0.0, 0.3, -5.21, 100.01, 0.999};
  std::vector<double> heard = {0.1, 0.35, -4.0, 99.02, 1.001};
  constexpr int kRounds = 20'000;
  std::vector<double> sum(own.size());
  for (int k = 0; k < kRounds; ++k) {
    const Grid grid{.exponent = -2, .seed = static_cast<std::uint64_t>(k)};
    const Buffer ours(3, DType::kUInt8);
    const Buffer theirs(3, DType::kUInt8);
    int4().encode(ours.block(), block_of(std::span(own)), grid, best_simd_path());
    int4().encode(theirs.block(), block_of(std::span(heard)), grid, best_simd_path());
    int4().add_difference(block_of(std::span(sum)), {theirs.block(), 1.0}, ours.block(), grid,
                          best_simd_path());
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    EXPECT_NEAR(sum[i] / kRounds, heard[i] - own[i], 5.0 * 0.125 / std::sqrt(kRounds)) << i;
  }
}

}  // namespace
}  // namespace gossamer
