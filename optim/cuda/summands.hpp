#pragma once
// The work of sums under a codec on a CUDA stream. In a build without CUDA the function throws
// std::logic_error.

#include "optim/summands.hpp"

namespace gossamer {

/// Enqueues what enqueue_summands() in optim/summands.hpp documents.
void cuda_summands(Stream& stream, const SummandWork& work);

}  // namespace gossamer
