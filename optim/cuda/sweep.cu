// The sweep on GPUs: one pass over memory with vector loads, by a persistent grid. A launch never
// waits for the host or the device: the kernel reads the factor of the gradients from the device's
// memory when it runs.

#include <optional>
#include <tuple>

#include "base/error.hpp"
#include "optim/cuda/launch.cuh"
#include "optim/cuda/sweep.hpp"
#include "optim/cuda/sweep_table.hpp"
#include "optim/every_optimizer.hpp"

namespace gossamer {
namespace {

// With 256 threads per block, each thread has 64 registers. No rule then spills registers in
// float32.
constexpr int kBlocksPerMultiprocessor = 4;

template <class Rule, class T, class G, Phase kPhase>
__global__ void __launch_bounds__(kSweepThreads, kBlocksPerMultiprocessor)
    sweep_kernel(const typename SweepLaunches<Rule, T, G>::Table __grid_constant__ table) {
  const bool applies = table.decision == nullptr || table.decision->apply != 0;
  const T scale = table.decision == nullptr ? T{1} : static_cast<T>(table.decision->factor);
  for (std::int32_t chunk = static_cast<std::int32_t>(blockIdx.x); chunk < table.num_chunks;
       chunk += static_cast<std::int32_t>(gridDim.x)) {
    const SweepSegment& segment = table.segments[segment_of(table, chunk)];
    const std::int64_t first = (chunk - segment.first_chunk) * kChunk<T>;
    const std::int64_t rest = segment.numel - first;
    SweepThread<Rule, T, G, kPhase>{table, segment, applies, scale}.run(
        first, rest < kChunk<T> ? rest : kChunk<T>, static_cast<int>(threadIdx.x));
  }
}

template <class Rule, class T, class G>
void launch_table(const Stream& stream, Phase phase,
                  const typename SweepLaunches<Rule, T, G>::Table& table) {
  const LaunchSize size{persistent_blocks(stream, table.num_chunks, kBlocksPerMultiprocessor),
                        kSweepThreads};
  with_phase<Rule>(phase, [&]<Phase kPhase>() {
    launch_kernel("a sweep", stream, size, sweep_kernel<Rule, T, G, kPhase>, table);
  });
}

template <class Rule, class T, class G = T>
void sweep_typed(const Rule& rule, const Stream& stream, const BlockUpdate& update,
                 const ConstBlock& source) {
  SweepLaunches<Rule, T, G>(rule, update, source).run([&stream](Phase phase, const auto& table) {
    launch_table<Rule, T, G>(stream, phase, table);
  });
}

template <class Rule>
void sweep_some_inboxes(const Rule& rule, const Stream& stream, const BlockUpdate& update,
                        const ConstBlock& source) {
  switch (update.parameters.dtype) {
    case DType::kFloat32:
      if (update.rounded.data != nullptr) {
        return sweep_typed<Rule, float, BFloat16>(rule, stream, update, source);
      }
      return sweep_typed<Rule, float>(rule, stream, update, source);
    case DType::kFloat64:
      return sweep_typed<Rule, double>(rule, stream, update, source);
    case DType::kBFloat16:
    case DType::kInt64:
    case DType::kUInt8:
      break;
  }
  throw std::logic_error("cuda_sweep: parameters must be float32 or float64");
}

template <class Rule, class T, class G = T>
void load_typed() {
  for (const Phase phase : Rule::kTraits.phases) {
    // nvcc wants a lambda that is no function pointer.
    with_phase<Rule>(phase, [&]<Phase kPhase>() { load_kernel(sweep_kernel<Rule, T, G, kPhase>); });
  }
}

template <class Rule>
void load_sweeps() {
  load_typed<Rule, float>();
  load_typed<Rule, float, BFloat16>();
  load_typed<Rule, double>();
}

template <class... Rules>
void load_all_sweeps(const std::tuple<Rules...>& /*rules*/) {
  (load_sweeps<Rules>(), ...);
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

template <class Rule>
void sweep_block(const Rule& rule, const Stream& stream, const BlockUpdate& update) {
  const CudaDeviceScope scope(stream.device().index);
  std::optional<StreamMemory> memory;
  Block mixed = update.parameters;
  if (kNeedsBefore<Rule> && update.intake.inboxes.size() > kMaxInboxes) {
    mixed.data = memory.emplace(stream, mixed.bytes()).data();
  }
  in_portions(rule, update, mixed,
              [&stream](const auto& some, const BlockUpdate& part, const ConstBlock& source) {
                sweep_some_inboxes(some, stream, part, source);
              });
}

/// Returns false unless `rule` is a Rule.
template <class Rule>
bool sweep_if(const RuleRef& rule, const Stream& stream, const BlockUpdate& update) {
  if (rule.type != typeid(Rule)) return false;
  sweep_block(*static_cast<const Rule*>(rule.value), stream, update);
  return true;
}

/// Returns false if `rule` is none of these.
template <class... Rules>
bool sweep_one_of(const std::tuple<Rules...>& /*rules*/, const RuleRef& rule, const Stream& stream,
                  const BlockUpdate& update) {
  return (sweep_if<Rules>(rule, stream, update) || ...);
}

}  // namespace

void cuda_sweep(const RuleRef& rule, Stream& stream, const BlockUpdate& update) {
  if (sweep_one_of(EveryRule(), rule, stream, update)) return;
  throw ConfigError("the optimizer's rule works on processors only; on GPUs take another one");
}

void cuda_mix(Stream& stream, const Block& x, double keep, const std::vector<Inbox>& inboxes) {
  BlockUpdate update;
  update.parameters = x;
  update.intake = {.keep = keep, .inboxes = inboxes};
  update.segments = {{.numel = x.numel}};
  sweep_block(NoRule{}, stream, update);
}

void cuda_load_kernels(Stream& stream) {
  const CudaDeviceScope scope(stream.device().index);
  load_conversions();
  load_reductions();
  load_sweeps<NoRule>();
  load_all_sweeps(EveryRule());
}

}  // namespace gossamer
