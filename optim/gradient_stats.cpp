#include "optim/gradient_stats.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace gossamer {
namespace {

// Elements of one partial sum; the partial sums are added in order.
constexpr std::int64_t kChunk = 64 * 1024;
constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kChains = 4;
// Bytes. Without prefetching, a gradient that has left the inner caches takes twice as long.
constexpr std::uintptr_t kPrefetchAhead = 2048;

// Vectors of the compiler, not of the processor: the compiler splits them where the processor's are
// shorter. So lanes and order of summation are the same on every path.
using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));

template <class T>
struct LanesOf {
  using Type __attribute__((vector_size(kLanes * sizeof(T)))) = T;
};

/// Loads kLanes values from `from` on. The result goes through a reference, because no vector may
/// be passed or returned by value where the caller's processor might not have it.
template <class T>
[[gnu::always_inline]] inline void load_wide(const T* from, Doubles& wide) {
  typename LanesOf<T>::Type lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  wide = __builtin_convertvector(lanes, Doubles);
}

[[gnu::always_inline]] inline void load_wide(const BFloat16* from, Doubles& wide) {
  using Words = typename LanesOf<std::uint32_t>::Type;
  typename LanesOf<std::uint16_t>::Type halves;
  std::memcpy(&halves, from, sizeof(halves));
  const Words bits = __builtin_convertvector(halves, Words) << 16U;
  typename LanesOf<float>::Type lanes;
  std::memcpy(&lanes, &bits, sizeof(lanes));
  wide = __builtin_convertvector(lanes, Doubles);
}

template <class T>
struct SumSquares {
  const T* values;
  std::int64_t numel;
  double* result;

  [[gnu::always_inline]] void operator()() const {
    std::array<Doubles, kChains> sums{};
    std::int64_t i = 0;
    for (; i + kChains * kLanes <= numel; i += kChains * kLanes) {
      prefetch(values + i, kPrefetchAhead, kChains * kLanes * sizeof(T));
      for (std::int64_t chain = 0; chain < kChains; ++chain) {
        Doubles wide;
        load_wide(values + i + chain * kLanes, wide);
        sums[static_cast<std::size_t>(chain)] += wide * wide;
      }
    }
    const Doubles total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double sum = 0.0;
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sum += total[lane];
    for (; i < numel; ++i) {
      const auto value = static_cast<double>(widened(values[i]));
      sum += value * value;
    }
    *result = sum;
  }
};

template <class T>
GradientStats stats_of(std::span<const T> values, SimdPath simd, WorkerPool* pool) {
  const auto numel = static_cast<std::int64_t>(values.size());
  const std::int64_t num_chunks = (numel + kChunk - 1) / kChunk;
  std::vector<double> sums(static_cast<std::size_t>(num_chunks));
  const auto sum_chunks = [&](const PartRange& chunks) {
    for (std::int64_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      const std::int64_t begin = chunk * kChunk;
      run_on(simd, SumSquares<T>{values.data() + begin, std::min(kChunk, numel - begin),
                                 &sums[static_cast<std::size_t>(chunk)]});
    }
  };
  if (pool != nullptr && num_chunks > 1) {
    pool->share(num_chunks, 1, sum_chunks);
  } else {
    sum_chunks({0, num_chunks});
  }
  GradientStats stats;
  for (const double sum : sums) stats.squares += sum;
  stats.finite = std::isfinite(stats.squares);
  if constexpr (sizeof(T) == sizeof(double)) {
    // Squares of finite doubles may overflow; squares of floats cannot.
    if (!stats.finite) {
      stats.finite = std::ranges::all_of(values, [](T value) { return std::isfinite(value); });
    }
  }
  return stats;
}

}  // namespace

GradientStats gradient_stats(const ConstBlock& gradient, SimdPath simd, WorkerPool* pool) {
  switch (gradient.dtype) {
    case DType::kFloat32:
      return stats_of(gradient.as<float>(), simd, pool);
    case DType::kFloat64:
      return stats_of(gradient.as<double>(), simd, pool);
    case DType::kBFloat16:
      return stats_of(gradient.as<BFloat16>(), simd, pool);
    case DType::kInt64:
    case DType::kUInt8:
      break;
  }
  throw std::logic_error("gradient_stats: gradients must be float32, float64 or bfloat16");
}

}  // namespace gossamer
