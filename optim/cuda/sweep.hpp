#pragma once
// The update of a block on a CUDA stream. The functions enqueue their work and return. In a build
// without CUDA there are no CUDA streams, and the functions throw std::logic_error (no_cuda.cpp).

#include <vector>

#include "base/stream.hpp"
#include "optim/block.hpp"

namespace gossamer {

/// The step of a block by one optimizer's rule, one of those in optim/cuda/every_rule.hpp.
template <class Rule>
void cuda_sweep(const Rule& rule, Stream& stream, const BlockUpdate& update);

/// enqueue_mix() in optim/block_update.hpp documents the arguments.
void cuda_mix(Stream& stream, const Block& x, double keep, const std::vector<Inbox>& inboxes);

/// Loads all kernels of optim to the stream's device. CUDA otherwise loads a kernel when it is
/// first launched, and may wait for the device then.
void cuda_load_kernels(Stream& stream);

}  // namespace gossamer
