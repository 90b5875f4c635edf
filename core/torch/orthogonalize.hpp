#pragma once
// The optimizer muon's products of matrices by LibTorch, on processors and GPUs alike, in the order
// of operations of torch.optim.Muon. On a GPU the work is enqueued on LibTorch's current stream.
// Thread safe.

#include "optim/orthogonalize.hpp"

namespace gossamer {

/// An Orthogonalize.
void torch_orthogonalize(const MatrixBlock& matrix, const NewtonSchulz& how);

}  // namespace gossamer
