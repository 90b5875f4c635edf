#pragma once
// Conversion between types of elements on a CUDA stream. Throws std::logic_error in a build without
// CUDA.

#include "optim/convert.hpp"

namespace gossamer {

/// Enqueues what enqueue_convert() in optim/convert.hpp documents.
void cuda_convert(Stream& stream, const Block& to, const ConstBlock& from);

}  // namespace gossamer
