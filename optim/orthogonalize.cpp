#include "optim/orthogonalize.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "base/error.hpp"

namespace gossamer {
namespace {

/// A tile of a product stays in registers, or in the first-level cache.
constexpr std::int64_t kTileRows = 4;
constexpr std::int64_t kTileCols = 32;

/// to = scale left right + keep from, in row-major order: left has rows x depth elements, right
/// depth x cols, to and from rows x cols. Every element adds up its products in their order, so all
/// SIMD paths give the same bits.
template <class T>
struct Product {
  const T* left = nullptr;
  const T* right = nullptr;
  const T* from = nullptr;
  T* to = nullptr;
  std::int64_t rows = 0;
  std::int64_t depth = 0;
  std::int64_t cols = 0;
  T scale = 1;
  T keep = 0;

  [[gnu::always_inline]] void operator()() const {
    for (std::int64_t i = 0; i < rows; i += kTileRows) {
      for (std::int64_t j = 0; j < cols; j += kTileCols) {
        if (i + kTileRows <= rows && j + kTileCols <= cols) {
          tile(i, j, kTileRows, kTileCols);
        } else {
          tile(i, j, std::min(kTileRows, rows - i), std::min(kTileCols, cols - j));
        }
      }
    }
  }

  [[gnu::always_inline]] void tile(std::int64_t i, std::int64_t j, std::int64_t num_rows,
                                   std::int64_t num_cols) const {
    T sums[kTileRows][kTileCols] = {};  // NOLINT(modernize-avoid-c-arrays): stays in registers
    for (std::int64_t k = 0; k < depth; ++k) {
      const T* const row = right + k * cols + j;
      for (std::int64_t r = 0; r < num_rows; ++r) {
        const T factor = left[(i + r) * depth + k];
#pragma GCC ivdep
        for (std::int64_t c = 0; c < num_cols; ++c) sums[r][c] += factor * row[c];
      }
    }
    for (std::int64_t r = 0; r < num_rows; ++r) {
      T* const out = to + (i + r) * cols + j;
      const T* const old = from == nullptr ? nullptr : from + (i + r) * cols + j;
      for (std::int64_t c = 0; c < num_cols; ++c) {
        out[c] = scale * sums[r][c] + (old == nullptr ? T{0} : keep * old[c]);
      }
    }
  }
};

template <class T>
std::vector<T> transposed(const std::vector<T>& x, std::int64_t rows, std::int64_t cols) {
  std::vector<T> result(x.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      result[static_cast<std::size_t>(j * rows + i)] = x[static_cast<std::size_t>(i * cols + j)];
    }
  }
  return result;
}

/// One step for a matrix with `rows` <= `cols`.
template <class T>
std::vector<T> step(const std::vector<T>& x, std::int64_t rows, std::int64_t cols,
                    const NewtonSchulz& how, SimdPath simd) {
  const auto num_squares = static_cast<std::size_t>(rows * rows);
  std::vector<T> gram(num_squares);
  std::vector<T> factor(num_squares);
  std::vector<T> next(x.size());
  const std::vector<T> across = transposed(x, rows, cols);
  run_on(simd, Product<T>{.left = x.data(),
                          .right = across.data(),
                          .to = gram.data(),
                          .rows = rows,
                          .depth = cols,
                          .cols = rows});
  run_on(simd, Product<T>{.left = gram.data(),
                          .right = gram.data(),
                          .from = gram.data(),
                          .to = factor.data(),
                          .rows = rows,
                          .depth = rows,
                          .cols = rows,
                          .scale = static_cast<T>(how.c),
                          .keep = static_cast<T>(how.b)});
  run_on(simd, Product<T>{.left = factor.data(),
                          .right = x.data(),
                          .from = x.data(),
                          .to = next.data(),
                          .rows = rows,
                          .depth = rows,
                          .cols = cols,
                          .keep = static_cast<T>(how.a)});
  return next;
}

template <class T>
void orthogonalize_typed(const MatrixBlock& matrix, const NewtonSchulz& how, SimdPath simd) {
  const auto elements = matrix.block.as<T>();
  std::vector<T> x(elements.begin(), elements.end());
  double squares = 0.0;
  for (const T value : x) squares += static_cast<double>(value) * static_cast<double>(value);
  const T norm = static_cast<T>(std::max(std::sqrt(squares), how.eps));
  for (T& value : x) value /= norm;
  const bool is_tall = matrix.rows > matrix.cols;
  const std::int64_t rows = std::min(matrix.rows, matrix.cols);
  const std::int64_t cols = std::max(matrix.rows, matrix.cols);
  if (is_tall) x = transposed(x, cols, rows);
  for (int i = 0; i < how.num_steps; ++i) x = step(x, rows, cols, how, simd);
  if (is_tall) x = transposed(x, rows, cols);
  std::ranges::copy(x, elements.begin());
}

}  // namespace

void orthogonalize(const MatrixBlock& matrix, const NewtonSchulz& how, SimdPath simd) {
  const Block& block = matrix.block;
  if (block.device.type != DeviceType::kCpu || block.numel != matrix.rows * matrix.cols) {
    throw std::logic_error("orthogonalize: needs a whole matrix in the memory of processors");
  }
  if (how.in_bfloat16) {
    throw ConfigError("the optimizer muon with precision: bfloat16 needs LibTorch; take float32");
  }
  if (block.dtype == DType::kFloat64) return orthogonalize_typed<double>(matrix, how, simd);
  if (block.dtype == DType::kFloat32) return orthogonalize_typed<float>(matrix, how, simd);
  throw std::logic_error("orthogonalize: the matrix must be float32 or float64");
}

}  // namespace gossamer
