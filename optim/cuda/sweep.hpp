#pragma once
// The update of blocks on a CUDA stream. The functions enqueue their work and return. In a build
// without CUDA there are no CUDA streams, and the functions throw std::logic_error (no_cuda.cpp).

#include <span>
#include <typeinfo>
#include <vector>

#include "base/stream.hpp"
#include "optim/block.hpp"

namespace gossamer {

/// A rule of any type.
struct RuleRef {
  const std::type_info& type;
  const void* value = nullptr;
};

/// The steps of blocks by one optimizer's rule. Blocks of the same types share launches. Throws
/// ConfigError for a rule without kernels, which is none of optim/every_optimizer.hpp.
void cuda_sweep(const RuleRef& rule, Stream& stream, std::span<const BlockUpdate> updates);

/// The steps of blocks without an optimizer: the pass mixes, encodes and measures. Without inboxes
/// the parameters stay as they are.
void cuda_mix(Stream& stream, std::vector<BlockUpdate> updates);

/// Loads all kernels of optim to the stream's device. CUDA otherwise loads a kernel when it is
/// first launched, and may wait for the device then.
void cuda_load_kernels(Stream& stream);

}  // namespace gossamer
