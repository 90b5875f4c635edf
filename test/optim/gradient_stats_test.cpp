#include "optim/gradient_stats.hpp"

#include "test/optim/parameters.hpp"

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace gossamer {
namespace {

template <class T>
std::vector<T> values_of(std::size_t count) {
  Random random(5, count);
  std::vector<T> values(count);
  draw(random, std::span(values), 2.0);
  return values;
}

template <class T>
T largest() {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return {0x7f7f};
  } else {
    return std::numeric_limits<T>::max();
  }
}

template <class T>
GradientStats stats_of(std::vector<T>& values, SimdPath simd = best_simd_path(),
                       WorkerPool* pool = nullptr) {
  return gradient_stats(block_of(std::span(values)), simd, pool);
}

template <class T>
class GradientStatsOf : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(GradientStatsOf, Types);

TYPED_TEST(GradientStatsOf, AreTheSumOfSquares) {
  for (const std::size_t count : {0U, 1U, 7U, 31U, 32U, 33U, 1000U, 65'536U, 65'537U, 200'001U}) {
    auto values = values_of<TypeParam>(count);
    long double sum = 0.0L;
    for (const TypeParam value : values) {
      const auto wide = static_cast<long double>(widened(value));
      sum += wide * wide;
    }
    const GradientStats stats = stats_of(values);
    EXPECT_NEAR(stats.squares, static_cast<double>(sum), 1e-13 * static_cast<double>(sum)) << count;
    EXPECT_TRUE(stats.finite);
  }
}

TYPED_TEST(GradientStatsOf, HaveTheSameBitsOnEveryPathAndNumberOfThreads) {
  auto values = values_of<TypeParam>(300'007);
  const double expected = stats_of(values, SimdPath::kBaseline).squares;
  for (const SimdPath path : available_simd_paths()) {
    EXPECT_EQ(stats_of(values, path).squares, expected) << name_of(path);
    for (int threads = 1; threads <= 4; ++threads) {
      WorkerPool pool(threads);
      EXPECT_EQ(stats_of(values, path, &pool).squares, expected) << threads << " threads";
    }
  }
}

TYPED_TEST(GradientStatsOf, FindASingleBadElementAnywhere) {
  using Limits = std::numeric_limits<double>;
  for (const std::size_t count : {1U, 40U, 131'075U}) {
    auto values = values_of<TypeParam>(count);
    for (const double bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
      for (const std::size_t place : {std::size_t{0}, count / 2, count - 1}) {
        const TypeParam good = std::exchange(values[place], element<TypeParam>(bad));
        for (const SimdPath path : available_simd_paths()) {
          EXPECT_FALSE(stats_of(values, path).finite) << count << " " << place;
        }
        values[place] = good;
      }
    }
    EXPECT_TRUE(stats_of(values).finite);
  }
}

TYPED_TEST(GradientStatsOf, AreFiniteForTheLargestNumbers) {
  std::vector<TypeParam> values(100, largest<TypeParam>());
  EXPECT_TRUE(stats_of(values).finite);
}

TEST(GradientStats, RefuseIntegers) {
  std::vector<std::int64_t> values(3);
  EXPECT_THROW(gradient_stats(block_of(std::span(values))), std::logic_error);
}

}  // namespace
}  // namespace gossamer
