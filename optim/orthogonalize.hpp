#pragma once
// The nearest matrix with orthonormal rows or columns, by Newton-Schulz steps: what the optimizer
// muon makes of its momentum. A framework with fast products of matrices brings its own function;
// the function of this folder needs no library, and has the same numbers up to rounding.
//
// Thread safety: the functions have no state.

#include <cstdint>
#include <functional>

#include "base/types.hpp"
#include "optim/simd.hpp"

namespace gossamer {

/// With the singular values s of the matrix divided by its Frobenius norm, every step makes a s +
/// b s^3 + c s^5 of each s. Five steps bring all of them near 1, to 0.7 to 1.2 (Jordan et al.,
/// "Muon", 2024).
struct NewtonSchulz {
  double a = 3.4445;
  double b = -4.775;
  double c = 2.0315;
  int num_steps = 5;
  /// The norm counts as this at least.
  double eps = 1e-7;
  /// The products are made in bfloat16, not in the matrix's type. Only a framework can.
  bool in_bfloat16 = false;
};

/// A matrix in row-major order.
struct MatrixBlock {
  /// rows * cols elements, float32 or float64.
  Block block = {};
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

/// Replaces a matrix by the nearest matrix with orthonormal rows (with more columns than rows) or
/// columns. On processors the work is done at return; on a GPU it may be enqueued on the
/// framework's stream, which is the engine's.
using Orthogonalize = std::function<void(const MatrixBlock& matrix, const NewtonSchulz& how)>;

/// Orthogonalize for memory of processors. Throws std::logic_error for other memory and types.
void orthogonalize(const MatrixBlock& matrix, const NewtonSchulz& how,
                   SimdPath simd = best_simd_path());

}  // namespace gossamer
