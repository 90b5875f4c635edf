#pragma once
// Norms of gradients and the decisions that follow from them, on a CUDA stream. The functions
// enqueue their work and return; optim/gradient_control.hpp documents the arguments. In a build
// without CUDA the functions throw std::logic_error.

#include "optim/gradient_control.hpp"

namespace gossamer {

void cuda_squares(Stream& stream, const SquaresInput& input);
void cuda_flag(Stream& stream, const ConstBlock& squares, double* flag);
void cuda_decisions(Stream& stream, const DecisionInput& input);
void cuda_norm(Stream& stream, const ConstBlock& squares, double unit, const double* flag,
               double* last_norm);

}  // namespace gossamer
