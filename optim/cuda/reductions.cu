// Sums on GPUs: squared norms of gradients, the decisions that follow from them, and the swap of a
// model with the mean. Every sum is taken in float64, in an order that depends on the sizes alone.

#include <cmath>
#include <limits>

#include "optim/cuda/launch.cuh"
#include "optim/cuda/reductions.hpp"
#include "optim/cuda/swap_with_mean.hpp"

namespace gossamer {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr LaunchSize kOneBlock{1, kThreads};
// Gradients per launch: the table is a kernel parameter, whose size is limited.
constexpr int kMostGradients = 1024;

struct GradientTable {
  struct Entry {
    const void* data;
    std::int64_t numel;
    std::int32_t first_chunk;
  };
  double* scratch;
  double* squares;
  std::int32_t num_entries;
  std::int32_t num_chunks;
  Entry entries[kMostGradients];
};
static_assert(sizeof(GradientTable) <= 32764, "the most that a kernel's parameters may take");

// Decisions per launch.
constexpr int kMostDecisions = 64;

struct DecisionTable {
  const double* squares[kMostDecisions];
  std::int64_t counts[kMostDecisions];
  DecisionRule rule;
  const double* last_norm;
  const double* flag;
  GradientDecision* decisions;
};

/// The sum of `value` over a block's threads. All threads must call it.
__device__ double block_sum(double value) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  const double sum = sums[0];
  __syncthreads();
  return sum;
}

__device__ double strided_sum(const double* values, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += values[i];
  return block_sum(sum);
}

__device__ std::int64_t chunk_numel(std::int64_t numel, std::int64_t first) {
  return numel - first < kSquaresChunk ? numel - first : kSquaresChunk;
}

/// Writes one partial sum per chunk; NaN where an element is not finite.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_chunks(const GradientTable __grid_constant__ table) {
  for (std::int32_t chunk = static_cast<std::int32_t>(blockIdx.x); chunk < table.num_chunks;
       chunk += static_cast<std::int32_t>(gridDim.x)) {
    int low = 0;
    int high = table.num_entries;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (table.entries[middle].first_chunk <= chunk ? low : high) = middle;
    }
    const GradientTable::Entry& entry = table.entries[low];
    const std::int64_t first = (chunk - entry.first_chunk) * kSquaresChunk;
    const T* const values = static_cast<const T*>(entry.data) + first;
    const std::int64_t count = chunk_numel(entry.numel, first);
    double sum = 0.0;
    bool finite = true;
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
      const double value = static_cast<double>(widened(values[i]));
      finite = finite && isfinite(value);
      sum += value * value;
    }
    const bool all_finite = __syncthreads_and(finite ? 1 : 0) != 0;
    const double total = block_sum(sum);
    if (threadIdx.x == 0) table.scratch[chunk] = all_finite ? total : nan("");
  }
}

/// Adds up the chunks of each gradient; one thread block per gradient.
__global__ void __launch_bounds__(kThreads)
    sum_gradients(const GradientTable __grid_constant__ table) {
  const auto entry = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t first = table.entries[entry].first_chunk;
  const std::int32_t last =
      entry + 1 < table.num_entries ? table.entries[entry + 1].first_chunk : table.num_chunks;
  const double sum = strided_sum(table.scratch + first, last - first);
  if (threadIdx.x == 0) table.squares[entry] = sum;
}

__global__ void __launch_bounds__(kThreads)
    raise_flag(const double* squares, std::int64_t count, double* flag) {
  const double sum = strided_sum(squares, count);
  if (threadIdx.x == 0) *flag = isnan(sum) ? 1.0 : 0.0;
}

/// One thread block per decision.
__global__ void __launch_bounds__(kThreads) decide(const DecisionTable __grid_constant__ table) {
  const unsigned place = blockIdx.x;
  const double sum = strided_sum(table.squares[place], table.counts[place]);
  if (threadIdx.x != 0) return;
  const bool apply = table.flag == nullptr ? !isnan(sum) : *table.flag == 0.0;
  table.decisions[place] = {apply ? factor_of(table.rule, sum, *table.last_norm) : 0.0,
                            apply ? 1 : 0};
}

__global__ void __launch_bounds__(kThreads)
    note_norm(const double* squares, std::int64_t count, double unit, const double* flag,
              double* last_norm) {
  const double sum = strided_sum(squares, count);
  if (threadIdx.x == 0 && (flag == nullptr || *flag == 0.0)) *last_norm = unit * sqrt(sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    swap_chunks(T* x, T* sum, std::int64_t numel, T size, double* scratch) {
  const std::int64_t num_chunks = (numel + kSquaresChunk - 1) / kSquaresChunk;
  for (std::int64_t chunk = blockIdx.x; chunk < num_chunks; chunk += gridDim.x) {
    const std::int64_t first = chunk * kSquaresChunk;
    const std::int64_t last = first + chunk_numel(numel, first);
    double squares = 0.0;
    for (std::int64_t i = first + threadIdx.x; i < last; i += kThreads) {
      squares += swap_with_mean(x[i], sum[i], size);
    }
    const double total = block_sum(squares);
    if (threadIdx.x == 0) scratch[chunk] = total;
  }
}

__global__ void __launch_bounds__(kThreads)
    add_up(const double* values, std::int64_t count, double* result) {
  const double sum = strided_sum(values, count);
  if (threadIdx.x == 0) *result = sum;
}

const double* numbers(const ConstBlock& block) { return block.as<double>().data(); }

void launch_squares(const Stream& stream, const GradientTable& table, DType dtype) {
  constexpr const char* kWhat = "the sum of squares";
  if (table.num_chunks > 0) {
    const unsigned blocks = persistent_blocks(stream, table.num_chunks, kBlocksPerMultiprocessor);
    const auto kernel = dtype == DType::kFloat32    ? sum_chunks<float>
                        : dtype == DType::kBFloat16 ? sum_chunks<BFloat16>
                                                    : sum_chunks<double>;
    launch_kernel(kWhat, stream, {blocks, kThreads}, kernel, table);
  }
  const auto num_gradients = static_cast<unsigned>(table.num_entries);
  launch_kernel(kWhat, stream, {num_gradients, kThreads}, sum_gradients, table);
}

template <class T>
void launch_swap(const Stream& stream, const SwapInput& input) {
  const unsigned blocks =
      persistent_blocks(stream, swap_scratch_numel(input.x.numel), kBlocksPerMultiprocessor);
  launch_kernel("the swap with the mean", stream, {blocks, kThreads}, swap_chunks<T>,
                input.x.as<T>().data(), input.sum.as<T>().data(), input.x.numel,
                static_cast<T>(input.size), input.scratch.as<double>().data());
}

}  // namespace

void load_reductions() {
  load_kernel(sum_chunks<float>);
  load_kernel(sum_chunks<double>);
  load_kernel(sum_chunks<BFloat16>);
  load_kernel(sum_gradients);
  load_kernel(raise_flag);
  load_kernel(decide);
  load_kernel(note_norm);
  load_kernel(swap_chunks<float>);
  load_kernel(swap_chunks<double>);
  load_kernel(add_up);
}

void cuda_squares(Stream& stream, const SquaresInput& input) {
  const CudaDeviceScope scope(stream.device().index);
  GradientTable table;
  table.scratch = input.scratch.as<double>().data();
  const std::size_t count = input.gradients.size();
  for (std::size_t begin = 0; begin < count; begin += kMostGradients) {
    table.squares = input.squares.as<double>().data() + begin;
    table.num_entries = 0;
    table.num_chunks = 0;
    DType dtype = DType::kFloat32;
    for (std::size_t i = begin; i < count && table.num_entries < kMostGradients; ++i) {
      const ConstBlock& gradient = input.gradients[i];
      const std::int64_t numel = gradient.data == nullptr ? 0 : gradient.numel;
      if (numel > 0) dtype = gradient.dtype;
      table.entries[table.num_entries++] = {gradient.data, numel, table.num_chunks};
      table.num_chunks += static_cast<std::int32_t>((numel + kSquaresChunk - 1) / kSquaresChunk);
    }
    launch_squares(stream, table, dtype);
  }
}

void cuda_flag(Stream& stream, const ConstBlock& squares, double* flag) {
  const CudaDeviceScope scope(stream.device().index);
  launch_kernel("the search for what is not finite", stream, kOneBlock, raise_flag,
                numbers(squares), squares.numel, flag);
}

void cuda_decisions(Stream& stream, const DecisionInput& input) {
  const CudaDeviceScope scope(stream.device().index);
  const std::size_t count = input.squares.size();
  for (std::size_t begin = 0; begin < count; begin += kMostDecisions) {
    DecisionTable table{.squares = {},
                        .counts = {},
                        .rule = input.rule,
                        .last_norm = input.last_norm,
                        .flag = input.flag,
                        .decisions = input.decisions + begin};
    unsigned num_decisions = 0;
    for (std::size_t i = begin; i < count && num_decisions < kMostDecisions; ++i) {
      table.squares[num_decisions] = numbers(input.squares[i]);
      table.counts[num_decisions++] = input.squares[i].numel;
    }
    launch_kernel("the decision about gradients", stream, {num_decisions, kThreads}, decide, table);
  }
}

void cuda_norm(Stream& stream, const ConstBlock& squares, double unit, const double* flag,
               double* last_norm) {
  const CudaDeviceScope scope(stream.device().index);
  launch_kernel("the norm of a step", stream, kOneBlock, note_norm, numbers(squares), squares.numel,
                unit, flag, last_norm);
}

void cuda_swap_with_mean(Stream& stream, const SwapInput& input) {
  const CudaDeviceScope scope(stream.device().index);
  if (input.x.numel > 0) {
    if (input.x.dtype == DType::kFloat32) {
      launch_swap<float>(stream, input);
    } else {
      launch_swap<double>(stream, input);
    }
  }
  launch_kernel("the swap with the mean", stream, kOneBlock, add_up, numbers(input.scratch),
                swap_scratch_numel(input.x.numel), input.squares);
}

}  // namespace gossamer
