#pragma once
// The numbers of scaled_bytes.hpp, one element at a time. Processors (scaled_bytes.cpp) and GPUs
// (optim/cuda) use the same functions.

#include <bit>
#include <cstdint>
#include <limits>

#include "base/host_device.hpp"
#include "optim/codecs/float_sizes.hpp"

namespace gossamer::internal {

inline constexpr std::int64_t kScaleBytes = sizeof(float);

/// A scale, and what values are multiplied by.
struct Scale {
  float step = 0.0F;
  float inverse = 0.0F;
};

/// `largest`: the largest float_size() of a part. As integers, infinity and NaN are above all
/// numbers.
template <int kBits>
GOSSAMER_INLINE_ANYWHERE Scale scale_of(std::int32_t largest) {
  if (largest >= kInfiniteSize) return {std::numeric_limits<float>::quiet_NaN(), 0.0F};
  constexpr auto kMostSteps = static_cast<float>((1 << (kBits - 1)) - 1);
  const float step = std::bit_cast<float>(largest) / kMostSteps;
  // The inverse of a smaller number may be infinite.
  if (step < std::numeric_limits<float>::min()) return {};
  return {step, 1.0F / step};
}

/// The lowest 8 bits hold the number. `inverse`: of the scale.
GOSSAMER_INLINE_ANYWHERE std::uint8_t scaled_number(float x, float inverse) {
  // Adding it rounds a float of at most 127 to a whole number, which then stands in the last byte.
  constexpr float kRounder = 0x1.8p23F;
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(x * inverse + kRounder));
}

/// The value of a number of 8 bits. Numbers of 4 bits come as 16 times their size.
template <int kBits, class T>
GOSSAMER_INLINE_ANYWHERE T scaled_value(std::uint8_t number, T scale) {
  constexpr T kUnit = T{1} / T{1 << (8 - kBits)};
  return scale * (kUnit * static_cast<T>(static_cast<std::int8_t>(number)));
}

/// Bytes of the numbers of one part.
template <int kBits>
GOSSAMER_HOST_DEVICE constexpr std::int64_t number_bytes(std::int64_t count) {
  return (count * kBits + 7) / 8;
}

}  // namespace gossamer::internal
