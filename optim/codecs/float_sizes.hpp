#pragma once
// Sizes of values as integers, which are ordered as |x| is, and which the compiler compares in
// vectors.

#include <bit>
#include <cstdint>

#include "base/host_device.hpp"

namespace gossamer::internal {

/// The size of infinity. The size of NaN is larger, and the sizes of all numbers are smaller.
inline constexpr std::int32_t kInfiniteSize = 0x7f80'0000;

/// The bits of |x| as a float.
template <class T>
GOSSAMER_INLINE_ANYWHERE std::int32_t float_size(T x) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x)) & 0x7fff'ffffU;
  return static_cast<std::int32_t>(bits);
}

}  // namespace gossamer::internal
