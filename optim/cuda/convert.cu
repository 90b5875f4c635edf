// Conversion between float32 and bfloat16 on GPUs, four elements at a time.

#include "optim/cuda/convert.hpp"
#include "optim/cuda/launch.cuh"
#include "optim/cuda/pack.hpp"

namespace gossamer {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr std::int64_t kLanesAtOnce = 4;

__device__ void assign(float& to, BFloat16 from) { to = widened(from); }
__device__ void assign(BFloat16& to, float from) { to = rounded_to_bfloat16(from); }

/// Converts kCount elements at a time; both addresses must be aligned to packs of kCount elements.
template <class To, class From, std::int64_t kCount>
__global__ void __launch_bounds__(kThreads)
    convert_kernel(To* to, const From* from, std::int64_t numel) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  const std::int64_t begin = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (std::int64_t i = begin; i < numel / kCount; i += step) {
    const auto in = load_pack<Pack<From, kCount>>(from + i * kCount);
    Pack<To, kCount> out;
    for (std::size_t lane = 0; lane < kCount; ++lane) assign(out.lanes[lane], in.lanes[lane]);
    store_pack(to + i * kCount, out);
  }
  for (std::int64_t i = numel / kCount * kCount + begin; i < numel; i += step) {
    assign(to[i], from[i]);
  }
}

template <class To, class From>
void launch_convert(const Stream& stream, const Block& to, const ConstBlock& from) {
  const unsigned blocks =
      persistent_blocks(stream, to.numel / (kThreads * kLanesAtOnce) + 1, kBlocksPerMultiprocessor);
  To* const out = to.as<To>().data();
  const From* const in = from.as<From>().data();
  const bool aligned = is_aligned<kLanesAtOnce>(out) && is_aligned<kLanesAtOnce>(in);
  const auto kernel =
      aligned ? convert_kernel<To, From, kLanesAtOnce> : convert_kernel<To, From, 1>;
  launch_kernel("a conversion", stream, {blocks, kThreads}, kernel, out, in, to.numel);
}

}  // namespace

void load_conversions() {
  load_kernel(convert_kernel<BFloat16, float, kLanesAtOnce>);
  load_kernel(convert_kernel<BFloat16, float, 1>);
  load_kernel(convert_kernel<float, BFloat16, kLanesAtOnce>);
  load_kernel(convert_kernel<float, BFloat16, 1>);
}

void cuda_convert(Stream& stream, const Block& to, const ConstBlock& from) {
  const CudaDeviceScope scope(stream.device().index);
  if (to.dtype == DType::kBFloat16) return launch_convert<BFloat16, float>(stream, to, from);
  launch_convert<float, BFloat16>(stream, to, from);
}

}  // namespace gossamer
