#pragma once
// The sweep on GPUs: one pass over memory with vector loads, by a persistent grid. A launch never
// waits for the host or the device: the kernel reads the factor of the gradients from the device's
// memory when it runs. sweep.cu makes the kernels of plain passes, and coded_sweep.cu the kernels
// of passes that decode, encode or measure (kCodes), which nvcc then compiles at the same time.

#include <optional>
#include <span>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "optim/cuda/launch.cuh"
#include "optim/cuda/sweep.hpp"
#include "optim/cuda/sweep_table.hpp"
#include "optim/every_optimizer.hpp"

namespace gossamer {

// With 256 threads per block, each thread has 64 registers. No rule then spills registers in
// float32.
constexpr int kBlocksPerMultiprocessor = 4;

/// Adds what the threads of a thread block have seen to the statistics, if there are any. All
/// threads must call it.
template <class T>
__device__ void add_seen(const CodedExchange<T>& coded, const SeenDifferences<T>& seen) {
  if (coded.stats == nullptr) return;
  __shared__ unsigned largest;
  __shared__ unsigned num_wide;
  if (threadIdx.x == 0) largest = num_wide = 0;
  __syncthreads();
  atomicMax(&largest, seen.largest_bits(coded));
  if (seen.num_wide > 0) atomicAdd(&num_wide, seen.num_wide);
  __syncthreads();
  if (threadIdx.x != 0) return;
  atomicMax(&coded.stats->largest, largest);
  if (num_wide > 0) {
    using Count = unsigned long long;  // NOLINT(google-runtime-int): CUDA's type of 64 bits
    atomicAdd(reinterpret_cast<Count*>(&coded.stats->num_wide), Count{num_wide});
  }
}

template <class Rule, class T, class G, Phase kPhase, bool kCodes>
__global__ void __launch_bounds__(kSweepThreads, kBlocksPerMultiprocessor)
    sweep_kernel(const typename SweepLaunches<Rule, T, G>::Table __grid_constant__ table) {
  SeenDifferences<T> seen;
  BlockGradients<T> gradients;
  int place = -1;
  for (std::int32_t chunk = static_cast<std::int32_t>(blockIdx.x); chunk < table.num_chunks;
       chunk += static_cast<std::int32_t>(gridDim.x)) {
    const SweepSegment& segment = table.segments[segment_of(table, chunk)];
    if (segment.block != place) {
      if constexpr (kCodes) {
        if (place >= 0) add_seen(table.blocks[place].coded, seen);
        seen = {};
      }
      place = segment.block;
      gradients = BlockGradients<T>::of(table.blocks[place].decision);
    }
    const std::int64_t first = (chunk - segment.first_chunk) * kChunk<T>;
    const std::int64_t rest = segment.numel - first;
    SweepThread<Rule, T, G, kPhase, kCodes>{table, segment, table.blocks[place], gradients, seen}
        .run(first, rest < kChunk<T> ? rest : kChunk<T>, static_cast<int>(threadIdx.x));
  }
  if constexpr (kCodes) {
    if (place >= 0) add_seen(table.blocks[place].coded, seen);
  }
}

template <class Rule, class T, class G, bool kCodes>
void launch_table(const Stream& stream, Phase phase,
                  const typename SweepLaunches<Rule, T, G>::Table& table) {
  const LaunchSize size{persistent_blocks(stream, table.num_chunks, kBlocksPerMultiprocessor),
                        kSweepThreads};
  with_phase<Rule>(phase, [&]<Phase kPhase>() {
    launch_kernel("a sweep", stream, size, sweep_kernel<Rule, T, G, kPhase, kCodes>, table);
  });
}

template <bool kCodes, class T, class G = T, class Rule>
void sweep_typed(const Rule& rule, const Stream& stream, std::span<const Portion> portions) {
  SweepLaunches<Rule, T, G>(rule, portions).run([&stream](Phase phase, const auto& table) {
    launch_table<Rule, T, G, kCodes>(stream, phase, table);
  });
}

/// The portions are alike (num_alike()).
template <bool kCodes, class Rule>
void sweep_portions(const Rule& rule, const Stream& stream, std::span<const Portion> portions) {
  const BlockUpdate& update = portions.front().update;
  switch (update.parameters.dtype) {
    case DType::kFloat32:
      if (update.rounded.data != nullptr) {
        return sweep_typed<kCodes, float, BFloat16>(rule, stream, portions);
      }
      return sweep_typed<kCodes, float>(rule, stream, portions);
    case DType::kFloat64:
      return sweep_typed<kCodes, double>(rule, stream, portions);
    case DType::kBFloat16:
    case DType::kInt64:
    case DType::kUInt8:
      break;
  }
  throw std::logic_error("cuda_sweep: parameters must be float32 or float64");
}

template <bool kCodes, class Rule, class T, class G = T>
void load_typed() {
  for (const Phase phase : Rule::kTraits.phases) {
    // nvcc wants a lambda that is no function pointer.
    with_phase<Rule>(
        phase, [&]<Phase kPhase>() { load_kernel(sweep_kernel<Rule, T, G, kPhase, kCodes>); });
  }
}

template <bool kCodes, class Rule>
void load_sweeps_of() {
  load_typed<kCodes, Rule, float>();
  load_typed<kCodes, Rule, float, BFloat16>();
  load_typed<kCodes, Rule, double>();
}

template <bool kCodes, class... Rules>
void load_sweeps(const std::tuple<Rules...>& /*rules*/) {
  (load_sweeps_of<kCodes, Rules>(), ...);
}

/// Memory for work given to a stream while this object lives.
class StreamMemory {
 public:
  StreamMemory(const Stream& stream, std::int64_t bytes) : stream_(native(stream)) {
    cuda_check(cudaMallocAsync(&data_, static_cast<std::size_t>(bytes), stream_),
               "cudaMallocAsync");
  }
  ~StreamMemory() { cudaFreeAsync(data_, stream_); }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

template <bool kCodes, class Rule>
void sweep_block(const Rule& rule, const Stream& stream, const BlockUpdate& update) {
  std::optional<StreamMemory> memory;
  Block mixed = update.parameters;
  if (needs_mixed_block<Rule>(update)) {
    mixed.data = memory.emplace(stream, mixed.bytes()).data();
    cuda_check(
        cudaMemsetAsync(mixed.data, 0, static_cast<std::size_t>(mixed.bytes()), native(stream)),
        "cudaMemsetAsync");
  }
  in_portions(rule, update, mixed, [&stream](const auto& some, const Portion& portion) {
    sweep_portions<kCodes>(some, stream, {&portion, 1});
  });
}

/// The updates are alike (num_alike()).
template <bool kCodes, class Rule>
void sweep_blocks(const Rule& rule, const Stream& stream, std::span<const BlockUpdate> updates) {
  const CudaDeviceScope scope(stream.device().index);
  if (updates.size() == 1) return sweep_block<kCodes>(rule, stream, updates.front());
  std::vector<Portion> portions;
  portions.reserve(updates.size());
  for (const BlockUpdate& update : updates) portions.push_back(whole(update));
  sweep_portions<kCodes>(rule, stream, portions);
}

/// Returns false unless `rule` is a Rule.
template <bool kCodes, class Rule>
bool sweep_if(const RuleRef& rule, const Stream& stream, std::span<const BlockUpdate> updates) {
  if (rule.type != typeid(Rule)) return false;
  sweep_blocks<kCodes>(*static_cast<const Rule*>(rule.value), stream, updates);
  return true;
}

/// Returns false if `rule` is none of these.
template <bool kCodes, class... Rules>
bool sweep_one_of(const std::tuple<Rules...>& /*rules*/, const RuleRef& rule, const Stream& stream,
                  std::span<const BlockUpdate> updates) {
  return (sweep_if<kCodes, Rules>(rule, stream, updates) || ...);
}

/// The rules of all kernels.
using EverySweep = decltype(std::tuple_cat(EveryRule(), std::tuple<NoRule>()));

// The passes that decode, encode or measure (coded_sweep.cu).
bool coded_sweep(const RuleRef& rule, const Stream& stream, std::span<const BlockUpdate> updates);
void load_coded_sweeps();

}  // namespace gossamer
