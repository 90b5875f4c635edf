#pragma once
// A copy past the caches, for blocks that other processors read. No allocation; thread safe.

#include "base/types.hpp"

namespace gossamer {

/// to <- from, bit for bit. A counter that any thread raises later is not seen before the copy.
/// Throws std::logic_error unless both have the same type and size.
void stream_copy(const Block& to, const ConstBlock& from);

}  // namespace gossamer
