#include "gossamer/optim/swap_with_mean.hpp"

#include <stdexcept>

#include "gossamer/optim/cuda_kernels.hpp"

namespace gossamer {
namespace {

template <class T>
double swap_with_mean(std::span<T> x, std::span<T> sum, int size) {
  double squares = 0.0;
  const T ranks = static_cast<T>(size);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const T own = x[i];
    const T mean = sum[i] / ranks;
    const double difference = static_cast<double>(mean) - static_cast<double>(own);
    squares += difference * difference;
    x[i] = mean;
    sum[i] = own;
  }
  return squares;
}

double swap_now(const SwapInput& input) {
  switch (input.x.dtype) {
    case DType::kFloat32:
      return swap_with_mean(input.x.as<float>(), input.sum.as<float>(), input.size);
    case DType::kFloat64:
      return swap_with_mean(input.x.as<double>(), input.sum.as<double>(), input.size);
    case DType::kInt64:
    case DType::kUInt8:
      break;
  }
  throw std::logic_error("swap_with_mean: models must be float32 or float64");
}

}  // namespace

std::int64_t swap_scratch_numel(std::int64_t numel) {
  return (numel + kSquaresChunk - 1) / kSquaresChunk;
}

void enqueue_swap_with_mean(Stream& stream, const SwapInput& input) {
  if (!stream.on_host()) return cuda_swap_with_mean(stream, input);
  stream.run([input] { *input.squares = swap_now(input); });
}

}  // namespace gossamer
