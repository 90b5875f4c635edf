#pragma once
// Blocks in signed bytes. Every 1024 elements (Codec::kSummandPart) share a scale, a float32 in
// front of their bytes:
//
//   scale = max |x| / 127        q(x) = x / scale, rounded to nearest, ties to even
//
// A decoded value differs from x by at most half a scale. Bagua sums gradients in this way (Gan et
// al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2021).
//
// If one of the 1024 values is not finite, all of them decode to NaN. Where max |x| is below
// 1.5e-36, all are 0.

#include <cstdint>

#include "optim/codec.hpp"

namespace gossamer::internal {

/// Bytes of `numel` elements.
std::int64_t scaled_bytes(std::int64_t numel);
/// `to` has scaled_bytes(x.numel) bytes. `x` is float32 or float64, or std::logic_error.
void encode_scaled(const Block& to, const ConstBlock& x, SimdPath simd);
/// x += decoded(from). Types and sizes as in encode_scaled().
void add_scaled(const Block& x, const ConstBlock& from, SimdPath simd);

}  // namespace gossamer::internal
