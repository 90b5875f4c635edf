#pragma once
// Adds blocks in host memory, element by element.

#include "base/types.hpp"

namespace gossamer {

/// sum += term. Both have the same size and type: float32, float64 or int64. Throws
/// std::logic_error for other types.
void add_block(const Block& sum, const ConstBlock& term);

}  // namespace gossamer
