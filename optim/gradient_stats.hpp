#pragma once
// One reading pass over a gradient: its squared norm, and whether all of it is finite.
//
// The sum is taken in double, in an order that depends on the number of elements alone, so that
// every vector path and every number of threads gives the same bits.

#include "base/types.hpp"
#include "base/worker_pool.hpp"
#include "optim/simd.hpp"

namespace gossamer {

struct GradientStats {
  double squares = 0.0;
  bool finite = true;
};

/// `gradient`: float32, float64 or bfloat16. `pool` may be null.
GradientStats gradient_stats(const ConstBlock& gradient, SimdPath simd = best_simd_path(),
                             WorkerPool* pool = nullptr);

}  // namespace gossamer
