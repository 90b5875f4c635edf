#include "optim/swap_with_mean.hpp"

#include <stdexcept>

#include "optim/cuda/swap_with_mean.hpp"
#include "optim/gradient_stats.hpp"

namespace gossamer {
namespace {

template <class T>
double swap_all(const SwapInput& input) {
  const std::span<T> x = input.x.as<T>();
  const std::span<T> sum = input.sum.as<T>();
  double squares = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    squares += swap_with_mean(x[i], sum[i], static_cast<T>(input.size));
  }
  return squares;
}

double swap_now(const SwapInput& input) {
  switch (input.x.dtype) {
    case DType::kFloat32:
      return swap_all<float>(input);
    case DType::kFloat64:
      return swap_all<double>(input);
    case DType::kBFloat16:
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
