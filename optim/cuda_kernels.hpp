#pragma once
// The work of optim on CUDA streams; optim/cuda has the kernels. Each function enqueues its work
// and returns. In a build without CUDA there are no CUDA streams, and every function throws
// std::logic_error. The headers of the enqueue_ functions document the arguments.

#include <vector>

#include "optim/block_update.hpp"
#include "optim/convert.hpp"
#include "optim/gradient_control.hpp"
#include "optim/swap_with_mean.hpp"

namespace gossamer {

/// The step of a block by one optimizer's rule: one of optim/cuda/every_rule.hpp.
template <class Rule>
void cuda_sweep(const Rule& rule, Stream& stream, const BlockUpdate& update);

/// Loads all kernels of optim to the stream's device. CUDA otherwise loads a kernel when it is
/// first launched, and may wait for the device then.
void cuda_load_kernels(Stream& stream);

void cuda_mix(Stream& stream, const Block& x, double keep, const std::vector<Inbox>& inboxes);
void cuda_convert(Stream& stream, const Block& to, const ConstBlock& from);
void cuda_squares(Stream& stream, const SquaresInput& input);
void cuda_flag(Stream& stream, const ConstBlock& squares, double* flag);
void cuda_decision(Stream& stream, const DecisionInput& input);
void cuda_norm(Stream& stream, const ConstBlock& squares, double unit, const double* flag,
               double* last_norm);
void cuda_swap_with_mean(Stream& stream, const SwapInput& input);

}  // namespace gossamer
