#pragma once
// The bfloat16 type: the upper half of a float32, with 8 bits of exponent and 7 of fraction.
// bfloat16 is a storage format here: all arithmetic is done in float32.

#include <bit>
#include <cstdint>

#include "base/host_device.hpp"

namespace gossamer {

/// One stored value; a trivial type, like float.
struct BFloat16 {
  std::uint16_t bits;
  friend bool operator==(const BFloat16&, const BFloat16&) = default;
};

/// Returns the value as a float32; the conversion is exact.
[[nodiscard]] GOSSAMER_HOST_DEVICE constexpr float widened(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}
// These overloads let a template over several element types call widened() for each of them.
[[nodiscard]] GOSSAMER_HOST_DEVICE constexpr float widened(float value) { return value; }
[[nodiscard]] GOSSAMER_HOST_DEVICE constexpr double widened(double value) { return value; }

/// Rounds to nearest, ties to even. NaN becomes the quiet NaN 0x7fc0, as in LibTorch.
[[nodiscard]] GOSSAMER_HOST_DEVICE constexpr BFloat16 rounded_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return {static_cast<std::uint16_t>(is_nan ? 0x7fc0U : rounded)};
}

}  // namespace gossamer
