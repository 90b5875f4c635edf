#include "base/bfloat16.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

float round_trip(float value) { return widened(rounded_to_bfloat16(value)); }

TEST(BFloat16, KeepsEveryValueThatItCanHold) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const BFloat16 value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(widened(value))) continue;
    EXPECT_EQ(rounded_to_bfloat16(widened(value)), value) << bits;
  }
}

TEST(BFloat16, RoundsToTheNearestAndTiesToEven) {
  // For each pair of neighbours, test a value a little below the middle, the middle, and a little
  // above.
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const std::uint32_t middle = bits << 16U | 0x8000U;
    const auto below = rounded_to_bfloat16(std::bit_cast<float>(middle - 1));
    const auto at = rounded_to_bfloat16(std::bit_cast<float>(middle));
    const auto above = rounded_to_bfloat16(std::bit_cast<float>(middle + 1));
    ASSERT_EQ(below.bits, bits);
    ASSERT_EQ(at.bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(above.bits, bits + 1);
  }
}

TEST(BFloat16, KeepsWhatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(round_trip(inf), inf);
  EXPECT_EQ(round_trip(-inf), -inf);
  EXPECT_EQ(round_trip(std::numeric_limits<float>::max()), inf);
  for (const std::uint32_t bits : {0x7f800001U, 0x7fffffffU, 0xff800001U, 0xffffffffU}) {
    EXPECT_TRUE(std::isnan(round_trip(std::bit_cast<float>(bits)))) << bits;
  }
}

TEST(BFloat16, KeepsTheSignOfZero) {
  EXPECT_TRUE(std::signbit(round_trip(-0.0F)));
  EXPECT_FALSE(std::signbit(round_trip(0.0F)));
}

}  // namespace
}  // namespace gossamer
