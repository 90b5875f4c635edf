#include "optim/sparse_layout.hpp"

#include "test/core/largest_elements.hpp"
#include "test/optim/parameters.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

/// What the largest elements of x - from are after a message.
template <class T>
std::vector<T> sent(std::vector<T> x, std::vector<T> from, double fraction,
                    SimdPath simd = best_simd_path(), WorkerPool* pool = nullptr) {
  SparseLayout layout(fraction, block_of(std::span(x)).dtype);
  layout.add(0, std::ssize(x));
  const Buffer message(layout.num_bytes(), DType::kUInt8);
  layout.encode(message.block(), block_of(std::span(x)), block_of(std::span(from)), simd, pool);
  std::ranges::fill(from, T{});
  layout.add_to(block_of(std::span(from)), message.block(), 1.0);
  return from;
}

template <class T>
class SparseLayoutOf : public testing::Test {};
using SparseTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(SparseLayoutOf, SparseTypes);

TYPED_TEST(SparseLayoutOf, SendsTheLargestElementsOfEveryPart) {
  using T = TypeParam;
  Random random(1, 0);
  for (const std::int64_t numel : {1, 2, 63, 4095, 4096, 4097, 10'000}) {
    const auto count = static_cast<std::size_t>(numel);
    std::vector<T> x(count);
    std::vector<T> from(count);
    for (std::size_t i = 0; i < count; ++i) {
      x[i] = static_cast<T>(std::ldexp(random.uniform(-1, 1), static_cast<int>(i % 7)));
      from[i] = static_cast<T>(random.uniform(-1, 1));
    }
    for (const double fraction : {1e-6, 0.01, 0.3, 1.0}) {
      SCOPED_TRACE(concat(numel, " elements, fraction ", fraction));
      std::vector<double> expected(count);
      for (std::size_t i = 0; i < count; ++i) expected[i] = static_cast<double>(x[i] - from[i]);
      keep_largest(expected, 0, count, fraction);
      for (const SimdPath path : available_simd_paths()) {
        const std::vector<T> found = sent(x, from, fraction, path);
        EXPECT_EQ(std::vector<double>(found.begin(), found.end()), expected) << name_of(path);
      }
      WorkerPool pool(3);
      const std::vector<T> shared = sent(x, from, fraction, best_simd_path(), &pool);
      EXPECT_EQ(std::vector<double>(shared.begin(), shared.end()), expected);
    }
  }
}

TYPED_TEST(SparseLayoutOf, AddsWithAWeightAndLeavesGapsAlone) {
  using T = TypeParam;
  SparseLayout layout(0.5, block_of(std::span<T>()).dtype);
  layout.add(0, 2);
  layout.add(4, 4);
  // Two parts: one value and its place, and two of each; rounded up to 8 bytes.
  EXPECT_EQ(layout.num_bytes(), sizeof(T) == 4 ? 8 + 16 : 16 + 24);
  std::vector<T> x = {1, -2, 99, 99, 3, 0.5, -4, 0.25};
  const std::vector<T> zeros(8);
  const Buffer message(layout.num_bytes(), DType::kUInt8);
  std::vector<T> from = zeros;
  layout.encode(message.block(), block_of(std::span(x)), block_of(std::span(from)),
                best_simd_path());
  layout.add_to(block_of(std::span(x)), message.block(), 0.5);
  EXPECT_EQ(x, (std::vector<T>{1, -3, 99, 99, 4.5, 0.5, -6, 0.25}));
}

TEST(SparseLayout, SendsWhatIsNotANumberFirst) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> found = sent<double>({1.0, 5.0, none, 1e300}, {0, 0, 0, 0}, 0.5);
  EXPECT_EQ(found[0], 0.0);
  EXPECT_EQ(found[1], 0.0);
  EXPECT_TRUE(std::isnan(found[2]));
  EXPECT_EQ(found[3], 1e300);
}

TEST(SparseLayout, TakesTheFirstOfEqualElements) {
  EXPECT_EQ(sent<float>({2, 0, -2, 2, 2}, {0, 0, 0, 0, 0}, 0.4),
            (std::vector<float>{2, 0, -2, 0, 0}));
  EXPECT_EQ(sent<float>({0, 0, 0}, {0, 0, 0}, 0.7), (std::vector<float>{0, 0, 0}));
}

TYPED_TEST(SparseLayoutOf, RefusesPlacesOutsideOfTheirPart) {
  using T = TypeParam;
  SparseLayout layout(1.0, block_of(std::span<T>()).dtype);
  layout.add(0, 2);
  // Memory that no part of the layout has.
  std::vector<T> x = {1, 2, 99};
  const Buffer message(layout.num_bytes(), DType::kUInt8);
  const std::vector<std::uint16_t> places = {1, 2};
  std::memcpy(static_cast<std::byte*>(message.block().data) + 2 * sizeof(T), places.data(), 4);
  EXPECT_THROW(layout.add_to(block_of(std::span(x)), message.block(), 1.0), CommError);
  EXPECT_EQ(x[2], 99);
}

TEST(SparseLayout, NeedsBlocksThatFit) {
  SparseLayout layout(0.5, DType::kFloat32);
  layout.add(0, 8);
  std::vector<float> x(8);
  std::vector<double> wide(8);
  const Block block = block_of(std::span(x));
  const Buffer message(layout.num_bytes(), DType::kUInt8);
  const Buffer shorter(layout.num_bytes() - 1, DType::kUInt8);
  const SimdPath simd = best_simd_path();
  EXPECT_THROW(layout.encode(shorter.block(), block, block, simd), std::logic_error);
  EXPECT_THROW(layout.encode(message.block(), block_of(std::span(wide)), block, simd),
               std::logic_error);
  EXPECT_THROW(layout.encode(message.block(), block, block_of(std::span(wide)), simd),
               std::logic_error);
  EXPECT_THROW(layout.add_to(block, shorter.block(), 1.0), std::logic_error);
  EXPECT_THROW(layout.add_to(block_of(std::span(wide)), message.block(), 1.0), std::logic_error);
}

}  // namespace
}  // namespace gossamer
