#pragma once
// Conversion between float32 and bfloat16, as work on a stream.

#include "base/stream.hpp"
#include "base/types.hpp"

namespace gossamer {

/// to <- from. One block is float32 and the other bfloat16, or both have the same type; float32 is
/// rounded to the nearest bfloat16, ties to even. Both blocks have the same number of elements and
/// do not overlap. Throws std::logic_error for other types or sizes.
void enqueue_convert(Stream& stream, const Block& to, const ConstBlock& from);

}  // namespace gossamer
