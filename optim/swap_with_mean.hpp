#pragma once
// Replaces a model by the mean of all ranks' models, and keeps the model in the memory of the sum.

#include "base/host_device.hpp"
#include "base/stream.hpp"
#include "base/types.hpp"

namespace gossamer {

/// All memory lies on the stream's device and must stay until the work is done.
struct SwapInput {
  /// This rank's model, float32 or float64. Becomes the mean.
  Block x = {};
  /// The sum of `x` over `size` ranks, as many elements as `x`. Becomes the old value of `x`.
  Block sum = {};
  int size = 1;
  /// Float64, swap_scratch_numel() elements; only for streams that do not run on processors.
  Block scratch = {};
  /// Written: the squared L2 distance between the mean and the old `x`.
  double* squares = nullptr;
};

/// Swaps one element, and returns the squared distance between mean and model.
template <class T>
GOSSAMER_HOST_DEVICE double swap_with_mean(T& x, T& sum, T size) {
  const T own = x;
  const T mean = sum / size;
  const double difference = static_cast<double>(mean) - static_cast<double>(own);
  x = mean;
  sum = own;
  return difference * difference;
}

/// Elements of scratch memory for a model of `numel` elements.
std::int64_t swap_scratch_numel(std::int64_t numel);
/// Enqueues the swap. Throws std::logic_error for other types.
void enqueue_swap_with_mean(Stream& stream, const SwapInput& input);

}  // namespace gossamer
