#pragma once
// Puts the mean of all ranks' models in the place of a model, and keeps the model.

#include "base/host_device.hpp"
#include "base/stream.hpp"
#include "base/types.hpp"

namespace gossamer {

struct SwapInput {
  /// Float32 or float64. Becomes the mean.
  Block x = {};
  /// The sum of `x` over `size` ranks. Becomes what `x` was.
  Block sum = {};
  int size = 1;
  /// Float64, swap_scratch_numel() elements; for streams that do not run on processors.
  Block scratch = {};
  /// Set to the squared distance between the two.
  double* squares = nullptr;
};

/// For one element; returns the squared distance.
template <class T>
GOSSAMER_HOST_DEVICE double swap_with_mean(T& x, T& sum, T size) {
  const T own = x;
  const T mean = sum / size;
  const double difference = static_cast<double>(mean) - static_cast<double>(own);
  x = mean;
  sum = own;
  return difference * difference;
}

std::int64_t swap_scratch_numel(std::int64_t numel);
void enqueue_swap_with_mean(Stream& stream, const SwapInput& input);

}  // namespace gossamer
