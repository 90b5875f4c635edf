#pragma once
// Numbers of 4 bits, two in a byte, the first number in the lower half.

#include <array>
#include <cstdint>

#include "optim/codec.hpp"

namespace gossamer::internal {

/// Elements that are packed and unpacked together.
inline constexpr std::int64_t kPacked = Codec::kSummandPart;
/// Numbers of kPacked elements, one byte for each.
using Numbers = std::array<std::uint8_t, kPacked>;

/// to <- the lower halves of `numel` bytes, two in one. If `numel` is odd, `from` has room for one
/// more byte.
[[gnu::always_inline]] inline void pack_nibbles(std::uint8_t* from, std::int64_t numel,
                                                std::uint8_t* to) {
  if (numel % 2 == 1) from[numel] = 0;
  const std::int64_t num_bytes = (numel + 1) / 2;
  for (std::int64_t i = 0; i < num_bytes; ++i) {
    const std::uint8_t low = from[2 * i] & 0xfU;
    to[i] = static_cast<std::uint8_t>(low | from[2 * i + 1] << 4U);
  }
}

/// to <- 16 times each number, so that a byte has the sign of its number. If `numel` is odd, `to`
/// has room for one more byte.
[[gnu::always_inline]] inline void unpack_nibbles(const std::uint8_t* from, std::int64_t numel,
                                                  std::uint8_t* to) {
  const std::int64_t num_bytes = (numel + 1) / 2;
  for (std::int64_t i = 0; i < num_bytes; ++i) {
    to[2 * i] = static_cast<std::uint8_t>(from[i] << 4U);
    to[2 * i + 1] = static_cast<std::uint8_t>(from[i] & 0xf0U);
  }
}

}  // namespace gossamer::internal
