#pragma once
// The numbers that the codecs with a grid send, one element at a time. Processors (grid_codec.hpp
// has the formulas) and GPUs (optim/cuda) use the same functions.

#include <cmath>
#include <cstdint>

#include "base/host_device.hpp"
#include "optim/codec.hpp"

namespace gossamer::internal {

/// A number in [0, 1) with 24 bits, from the seed of a round and the place of a value.
GOSSAMER_INLINE_ANYWHERE float dither(std::uint32_t seed, std::uint32_t place) {
  std::uint32_t h = place * 0x9e37'79b1U + seed;
  h ^= h >> 16U;
  h *= 0x85eb'ca6bU;
  h ^= h >> 13U;
  h *= 0xc2b2'ae35U;
  h ^= h >> 16U;
  return static_cast<float>(static_cast<std::int32_t>(h >> 8U)) * 0x1p-24F;
}

/// Spreads the bits of a round's number.
inline std::uint32_t seed_of(const Grid& grid) {
  std::uint64_t h = (grid.seed + 1) * 0x9e37'79b9'7f4a'7c15ULL;
  h ^= h >> 29U;
  return static_cast<std::uint32_t>(h >> 16U);
}

/// The number of x's grid point modulo 2^kBits. `scale`: 1 / the step of the grid. `r`: dither().
template <int kBits, class T>
GOSSAMER_INLINE_ANYWHERE std::uint8_t grid_number(T x, T scale, T r) {
  constexpr T kModulus = T{1 << kBits};
  const T point = std::floor(x * scale + r);
  // Exact, because both numbers are whole and the result is small.
  const T rest = point - kModulus * std::floor(point * (T{1} / kModulus));
  // Values that are not finite are sent as 0.
  const T safe = rest >= T{0} && rest < kModulus ? rest : T{0};
  return static_cast<std::uint8_t>(static_cast<std::int32_t>(safe));
}

/// The difference of two numbers of 8 bits. Numbers of 4 bits come as 16 times their size.
GOSSAMER_INLINE_ANYWHERE std::int8_t grid_steps(std::uint8_t heard, std::uint8_t own) {
  const auto wrapped = static_cast<std::int8_t>(heard - own);
  return wrapped == -128 ? std::int8_t{0} : wrapped;
}

/// The size of a difference, at most 128.
GOSSAMER_INLINE_ANYWHERE std::uint8_t size_of_difference(std::uint8_t a, std::uint8_t b) {
  const auto up = static_cast<std::uint8_t>(a - b);
  const auto down = static_cast<std::uint8_t>(b - a);
  return up < down ? up : down;
}

/// The least size_of_difference() in the upper half of the range.
inline constexpr int kWideDifference = 64;

/// The unit of grid_steps() and size_of_difference() for numbers of kBits bits.
template <int kBits>
inline constexpr int kStepUnit = 1 << (8 - kBits);

}  // namespace gossamer::internal
