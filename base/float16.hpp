#pragma once
// The float16 type of IEEE 754 (binary16): 1 bit of sign, 5 of exponent, 10 of fraction. float16 is
// a storage format here, as bfloat16 is: all arithmetic is done in float32.

#include <bit>
#include <cstdint>

#include "base/host_device.hpp"

namespace gossamer {

/// One stored value; a trivial type, like float.
struct Float16 {
  std::uint16_t bits;
};

/// Returns the value as a float32; the conversion is exact. A NaN becomes the quiet NaN of its
/// sign.
[[nodiscard, gnu::always_inline]] GOSSAMER_HOST_DEVICE constexpr float widened(Float16 value) {
  constexpr std::uint32_t kHalf = 0x3f00'0000U;
  // The difference between the two exponents' biases, at the place of float32's exponent.
  constexpr std::uint32_t kBias = 112U << 23U;
  const std::uint32_t sign = (value.bits & 0x8000U) << 16U;
  const std::uint32_t size = value.bits & 0x7fffU;
  const std::uint32_t normal = (size << 13U) + kBias;
  // The values below 2^-14 are multiples of 2^-24, for which the last bit of 0.5 stands.
  const float small = std::bit_cast<float>(kHalf | size) - 0.5F;
  const std::uint32_t finite = size < 0x400U ? std::bit_cast<std::uint32_t>(small) : normal;
  const std::uint32_t not_finite = size == 0x7c00U ? 0x7f80'0000U : 0x7fc0'0000U;
  return std::bit_cast<float>(sign | (size >= 0x7c00U ? not_finite : finite));
}

}  // namespace gossamer
