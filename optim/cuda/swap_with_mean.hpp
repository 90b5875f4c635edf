#pragma once
// The swap of a model and the mean of all ranks on a CUDA stream. Throws std::logic_error in a
// build without CUDA.

#include "optim/swap_with_mean.hpp"

namespace gossamer {

/// Enqueues what enqueue_swap_with_mean() in optim/swap_with_mean.hpp documents.
void cuda_swap_with_mean(Stream& stream, const SwapInput& input);

}  // namespace gossamer
