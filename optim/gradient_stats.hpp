#pragma once
// Reads a gradient once and computes its squared norm and whether all its elements are finite.
//
// The sum is taken in float64, in an order that depends on the number of elements alone. So every
// vector path and every number of threads gives the same bits.

#include <cstdint>

#include "base/types.hpp"
#include "base/worker_pool.hpp"
#include "optim/simd.hpp"

namespace gossamer {

/// Elements of a gradient that one partial sum covers on a GPU.
inline constexpr std::int64_t kSquaresChunk = std::int64_t{1} << 16;

/// `squares` is the sum of squares; it may be infinite although all elements are finite.
struct GradientStats {
  double squares = 0.0;
  bool finite = true;
};

/// `gradient`: float32, float64 or bfloat16, on the host. Throws std::logic_error for other types.
/// `pool` may be null: the caller then does all the work.
GradientStats gradient_stats(const ConstBlock& gradient, SimdPath simd = best_simd_path(),
                             WorkerPool* pool = nullptr);

}  // namespace gossamer
