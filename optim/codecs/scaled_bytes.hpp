#pragma once
// Blocks in signed numbers of b = 8 or 4 bits. Every 1024 elements (Codec::kSummandPart) share a
// scale, a float32 in front of their numbers:
//
//   scale = max |x| / (2^(b-1) - 1)        q(x) = x / scale, rounded to nearest, ties to even
//
// A decoded value differs from x by at most half a scale. Numbers of 4 bits lie two in a byte, the
// first number in the lower half. Bagua sums gradients in 8 bits in this way (Gan et al., "BAGUA:
// Scaling up Distributed Learning with System Relaxations", VLDB 2021).
//
// If one of the 1024 values is not finite, all of them decode to NaN. Where the scale would be
// below 1.2e-38, all are 0.

#include <cstdint>

#include "optim/codec.hpp"

namespace gossamer::internal {

/// Bytes of `numel` elements.
template <int kBits>
std::int64_t scaled_bytes(std::int64_t numel);
/// `to` has scaled_bytes(x.numel) bytes. `x` is float32 or float64, or std::logic_error.
template <int kBits>
void encode_scaled(const Block& to, const ConstBlock& x, SimdPath simd);
/// x += decoded(from). Types and sizes as in encode_scaled().
template <int kBits>
void add_scaled(const Block& x, const ConstBlock& from, SimdPath simd);

extern template std::int64_t scaled_bytes<8>(std::int64_t);
extern template std::int64_t scaled_bytes<4>(std::int64_t);
extern template void encode_scaled<8>(const Block&, const ConstBlock&, SimdPath);
extern template void encode_scaled<4>(const Block&, const ConstBlock&, SimdPath);
extern template void add_scaled<8>(const Block&, const ConstBlock&, SimdPath);
extern template void add_scaled<4>(const Block&, const ConstBlock&, SimdPath);

}  // namespace gossamer::internal
