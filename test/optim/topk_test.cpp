// Tests the codec topk against its definition (optim/codecs/topk.cpp).

#include "test/optim/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "base/bfloat16.hpp"
#include "base/buffer.hpp"
#include "optim/codec.hpp"

namespace gossamer {
namespace {

const Codec& topk() { return *find_codec("topk"); }

/// What a rank adds to a sum when it hears `x`.
template <class T>
std::vector<T> largest_of(std::vector<T> x) {
  const Buffer wire(topk().summand_bytes(std::ssize(x)), DType::kUInt8);
  topk().encode_summand(wire.block(), block_of(std::span(x)), best_simd_path());
  std::ranges::fill(x, T{0});
  topk().add_summand(block_of(std::span(x)), wire.block(), best_simd_path());
  return x;
}

double bf16(double x) {
  return static_cast<double>(widened(rounded_to_bfloat16(static_cast<float>(x))));
}

/// The same by sorting.
std::vector<double> sorted_largest_of(const std::vector<float>& x) {
  std::vector<double> result(x.size());
  for (std::size_t first = 0; first < x.size(); first += 1024) {
    const std::size_t count = std::min<std::size_t>(1024, x.size() - first);
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), first);
    std::ranges::stable_sort(
        order, [&](std::size_t a, std::size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
    order.resize((count + 63) / 64);
    const auto size = [&](std::size_t i) { return static_cast<double>(std::abs(x[i])); };
    const double high = size(order.front());
    const double low = size(order.back());
    for (const std::size_t i : order) {
      const double level = size(i) > (low + high) / 2.0 ? bf16(high) : bf16(low);
      result[i] = x[i] < 0.0F ? -level : level;
    }
  }
  return result;
}

std::vector<float> drawn(std::int64_t numel, std::uint64_t seed) {
  Random random(seed, static_cast<std::uint64_t>(numel));
  std::vector<float> x(static_cast<std::size_t>(numel));
  // Cubes have long tails.
  for (float& value : x) value = static_cast<float>(std::pow(random.uniform(-1.0, 1.0), 3.0));
  return x;
}

TEST(TopK, SendsTheLargestElementsOfEveryPart) {
  for (const std::int64_t numel : {1, 2, 63, 64, 65, 128, 1000, 1023, 1024, 1025, 5000}) {
    const std::vector<float> x = drawn(numel, 3);
    const std::vector<float> found = largest_of(x);
    EXPECT_EQ(std::vector<double>(found.begin(), found.end()), sorted_largest_of(x)) << numel;
    EXPECT_EQ(largest_of(std::vector<double>(x.begin(), x.end())), sorted_largest_of(x)) << numel;
  }
}

TEST(TopK, SendsTheFirstOfEqualElements) {
  std::vector<float> x(1024, -0.5F);
  x[700] = 2.0F;
  x[30] = 0.25F;
  EXPECT_EQ(largest_of(std::vector<double>(x.begin(), x.end())), sorted_largest_of(x));
  EXPECT_EQ(largest_of(x)[14], -0.5F);
  EXPECT_EQ(largest_of(x)[15], 0.0F);
  EXPECT_EQ(largest_of(x)[700], 2.0F);
  EXPECT_EQ(largest_of(std::vector<float>(2000)), std::vector<float>(2000));
}

TEST(TopK, SendsNumbersOfEverySize) {
  for (int exponent = -120; exponent < 127; ++exponent) {
    std::vector<float> x(128, std::ldexp(1.0F, exponent - 3));
    x[5] = std::ldexp(-1.0F, exponent);
    x[77] = std::ldexp(1.5F, exponent);
    const std::vector<float> found = largest_of(x);
    EXPECT_EQ(found[5], x[5]) << exponent;
    EXPECT_EQ(found[77], x[77]) << exponent;
    EXPECT_EQ(std::accumulate(found.begin(), found.end(), 0.0F), x[5] + x[77]) << exponent;
  }
}

TEST(TopK, ShowsWhatIsNotFiniteInItsWholePart) {
  for (const float strange : {std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN(), -INFINITY}) {
    std::vector<float> x = drawn(2500, 4);
    x[1500] = strange;
    const std::vector<float> found = largest_of(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(std::isnan(found[i]), i >= 1024 && i < 2048) << i;
    }
  }
}

TEST(TopK, TakesTwelveBitsForAnElementAndFourBytesForAPart) {
  EXPECT_EQ(topk().summand_bytes(0), 0);
  EXPECT_EQ(topk().summand_bytes(1), 4 + 2);
  EXPECT_EQ(topk().summand_bytes(64), 4 + 2);
  EXPECT_EQ(topk().summand_bytes(65), 4 + 3);
  EXPECT_EQ(topk().summand_bytes(1024), 4 + 24);
  EXPECT_EQ(topk().summand_bytes(3 * 1024 + 640), 3 * 28 + 4 + 15);
}

// Error feedback: what is left out comes later, so the sum of all messages follows the sum of all
// blocks.
TEST(TopK, SendsEverythingInTheEnd) {
  const std::vector<float> x = drawn(1024, 5);
  std::vector<double> error(x.size());
  std::vector<double> said(x.size());
  constexpr int kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < x.size(); ++i) error[i] += static_cast<double>(x[i]);
    const std::vector<double> message = largest_of(error);
    for (std::size_t i = 0; i < x.size(); ++i) {
      error[i] -= message[i];
      said[i] += message[i];
    }
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    // An element comes every 64 rounds on average, or sooner if it is large.
    EXPECT_NEAR(said[i] / kRounds, static_cast<double>(x[i]), 0.02) << i;
  }
}

}  // namespace
}  // namespace gossamer
