#pragma once
// Between float32 and bfloat16, as work on a stream.

#include "base/stream.hpp"
#include "base/types.hpp"

namespace gossamer {

/// to <- from; one is float32 and the other bfloat16 (rounded to nearest even), or both have the
/// same type. As many elements; they do not overlap. Throws std::logic_error for other types.
void enqueue_convert(Stream& stream, const Block& to, const ConstBlock& from);

}  // namespace gossamer
