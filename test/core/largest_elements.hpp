#pragma once
// The oracle of top-k messages, written from the opening comment of optim/sparse_layout.hpp: sorts
// where the library counts.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace gossamer {

/// Exponent and eighth of a float32; zero comes last.
inline std::pair<int, int> coarse_size(double value) {
  const double size = std::abs(static_cast<double>(static_cast<float>(value)));
  if (size == 0.0) return {-1000, 0};
  int exponent = 0;
  const double significand = std::frexp(size, &exponent);
  return {exponent, static_cast<int>(std::floor(significand * 16.0))};
}

/// Keeps the largest elements of values[begin, end) in each part of 4096 elements, and makes the
/// others 0.
inline void keep_largest(std::vector<double>& values, std::size_t begin, std::size_t end,
                         double fraction) {
  constexpr std::size_t kPart = 4096;
  for (std::size_t first = begin; first < end; first += kPart) {
    const std::size_t size = std::min(kPart, end - first);
    const auto wanted =
        static_cast<std::size_t>(std::llround(fraction * static_cast<double>(size)));
    std::vector<std::size_t> order(size);
    std::iota(order.begin(), order.end(), first);
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      return coarse_size(values[a]) > coarse_size(values[b]);
    });
    for (std::size_t i = std::max<std::size_t>(wanted, 1); i < size; ++i) values[order[i]] = 0.0;
  }
}

}  // namespace gossamer
