#include "optim/gradient_control.hpp"

#include <limits>
#include <utility>

#include "optim/cuda/reductions.hpp"
#include "optim/gradient_stats.hpp"

namespace gossamer {
namespace {

double sum_of(const ConstBlock& squares) {
  double sum = 0.0;
  for (const double value : squares.as<double>()) sum += value;
  return sum;
}

void write_squares(const SquaresInput& input) {
  const std::span<double> squares = input.squares.as<double>();
  for (std::size_t i = 0; i < input.gradients.size(); ++i) {
    squares[i] = 0.0;
    if (input.gradients[i].data == nullptr) continue;
    const GradientStats stats = gradient_stats(input.gradients[i], input.simd, input.pool);
    squares[i] = stats.finite ? stats.squares : std::numeric_limits<double>::quiet_NaN();
  }
}

}  // namespace

std::int64_t squares_scratch_numel(std::span<const std::int64_t> gradient_numels) {
  std::int64_t chunks = 0;
  for (const std::int64_t numel : gradient_numels) {
    chunks += (numel + kSquaresChunk - 1) / kSquaresChunk;
  }
  return chunks;
}

void enqueue_squares(Stream& stream, SquaresInput input) {
  if (!stream.on_host()) return cuda_squares(stream, input);
  stream.run([input = std::move(input)] { write_squares(input); });
}

void enqueue_flag(Stream& stream, const ConstBlock& squares, double* flag) {
  if (!stream.on_host()) return cuda_flag(stream, squares, flag);
  stream.run([squares, flag] { *flag = std::isnan(sum_of(squares)) ? 1.0 : 0.0; });
}

void enqueue_decisions(Stream& stream, DecisionInput input) {
  if (!stream.on_host()) return cuda_decisions(stream, input);
  stream.run([input = std::move(input)] {
    for (std::size_t i = 0; i < input.squares.size(); ++i) {
      const double squares = sum_of(input.squares[i]);
      const bool apply = input.flag == nullptr ? !std::isnan(squares) : *input.flag == 0.0;
      input.decisions[i] = {apply ? factor_of(input.rule, squares, *input.last_norm) : 0.0,
                            apply ? 1 : 0};
    }
  });
}

void enqueue_norm(Stream& stream, const ConstBlock& squares, double unit, const double* flag,
                  double* last_norm) {
  if (!stream.on_host()) return cuda_norm(stream, squares, unit, flag, last_norm);
  stream.run([squares, unit, flag, last_norm] {
    if (flag == nullptr || *flag == 0.0) *last_norm = unit * std::sqrt(sum_of(squares));
  });
}

}  // namespace gossamer
