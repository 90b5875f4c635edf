#pragma once
// What optim does on CUDA streams (optim/cuda). In a build without CUDA these throw
// std::logic_error: there is no such stream then.

#include <stdexcept>

#include "optim/block_update.hpp"
#include "optim/convert.hpp"
#include "optim/gradient_control.hpp"
#include "optim/swap_with_mean.hpp"

namespace gossamer {

#ifdef GOSSAMER_HAVE_CUDA
/// The step of a block by one optimizer's rule. optim/cuda/sweep.cu makes one for every rule: a
/// linker that misses one means that a rule is not in its list.
template <class Rule>
void cuda_sweep(const Rule& rule, Stream& stream, const BlockUpdate& update);
#else
template <class Rule>
void cuda_sweep(const Rule&, Stream&, const BlockUpdate&) {
  throw std::logic_error("this program was built without CUDA");
}
#endif

void cuda_mix(Stream& stream, const Block& x, double keep, const std::vector<Inbox>& inboxes);
void cuda_convert(Stream& stream, const Block& to, const ConstBlock& from);
void cuda_squares(Stream& stream, const SquaresInput& input);
void cuda_flag(Stream& stream, const ConstBlock& squares, double* flag);
void cuda_decision(Stream& stream, const DecisionInput& input);
void cuda_norm(Stream& stream, const ConstBlock& squares, double unit, const double* flag,
               double* last_norm);
void cuda_swap_with_mean(Stream& stream, const SwapInput& input);

}  // namespace gossamer
