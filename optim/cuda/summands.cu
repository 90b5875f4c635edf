// The work of sums under a codec on GPUs. A thread block works on a part of 1024 elements, and
// holds the part's values in registers. The arithmetic and its order are the same as on processors,
// which keep denormal numbers here: so this file must too (cmake/GossamerCuda.cmake).

#include <cmath>

#include "optim/codecs/scaled_numbers.hpp"
#include "optim/codecs/small_formats.hpp"
#include "optim/codecs/topk_elements.hpp"
#include "optim/cuda/launch.cuh"
#include "optim/cuda/summands.hpp"

namespace gossamer {
namespace {

using internal::float_size;

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kPart = static_cast<int>(Codec::kSummandPart);
constexpr int kPerThread = kPart / kThreads;

/// SummandWork in a kernel.
template <class T>
struct WorkTable {
  const T* values;
  const std::uint8_t* messages;
  std::int64_t distance;
  std::int64_t num_messages;
  std::uint8_t* message;
  T* plain;
  T* residual;
  const std::uint8_t* said;
  std::int64_t numel;
};

/// The values of a thread in a part: two neighbours in each half, so that a thread has all that a
/// byte of two numbers holds.
template <class T>
struct Values {
  T lanes[kPerThread] = {};
};

/// The place in the part of a thread's value.
__device__ int place_of(int lane) {
  return lane / 2 * (kPart / 2) + 2 * static_cast<int>(threadIdx.x) + lane % 2;
}

/// The maximum over a block's threads. All threads must call it.
__device__ int block_max(int value) {
  __shared__ int largest;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  atomicMax(&largest, value);
  __syncthreads();
  const int result = largest;
  __syncthreads();
  return result;
}

/// bf16 and fp16.
template <class Format>
struct SmallParts {
  static constexpr int kBytes = 2 * kPart;

  template <class T>
  __device__ static void add(Values<T>& sum, const std::uint8_t* part, int count) {
    const auto* const codes = reinterpret_cast<const std::uint16_t*>(part);
    for (int lane = 0; lane < kPerThread; ++lane) {
      const int place = place_of(lane);
      if (place < count) sum.lanes[lane] += static_cast<T>(Format::decode(codes[place]));
    }
  }

  template <class T>
  __device__ static void encode(const Values<T>& x, std::uint8_t* part, int count) {
    auto* const codes = reinterpret_cast<std::uint16_t*>(part);
    for (int lane = 0; lane < kPerThread; ++lane) {
      const int place = place_of(lane);
      if (place < count) {
        codes[place] = Format::encode_summand(static_cast<float>(x.lanes[lane]));
      }
    }
  }
};

/// int8 and int4.
template <int kBits>
struct ScaledParts {
  static constexpr int kBytes =
      static_cast<int>(internal::kScaleBytes + internal::number_bytes<kBits>(kPart));

  template <class T>
  __device__ static void add(Values<T>& sum, const std::uint8_t* part, int count) {
    const T scale = static_cast<T>(*reinterpret_cast<const float*>(part));
    const std::uint8_t* const numbers = part + internal::kScaleBytes;
    for (int lane = 0; lane < kPerThread; ++lane) {
      const int place = place_of(lane);
      if (place >= count) continue;
      std::uint8_t number = numbers[kBits == 8 ? place : place / 2];
      if (kBits == 4)
        number = static_cast<std::uint8_t>(lane % 2 == 0 ? number << 4U : number & 0xf0U);
      sum.lanes[lane] += internal::scaled_value<kBits>(number, scale);
    }
  }

  template <class T>
  __device__ static void encode(const Values<T>& x, std::uint8_t* part, int count) {
    int largest = 0;
    for (int lane = 0; lane < kPerThread; ++lane) {
      if (place_of(lane) < count) largest = max(largest, float_size(x.lanes[lane]));
    }
    const internal::Scale scale = internal::scale_of<kBits>(block_max(largest));
    if (threadIdx.x == 0) *reinterpret_cast<float*>(part) = scale.step;
    std::uint8_t* const numbers = part + internal::kScaleBytes;
    for (int lane = 0; lane < kPerThread; lane += 2) {
      std::uint8_t pair[2] = {};
      const int place = place_of(lane);
      for (int i = 0; i < 2 && place + i < count; ++i) {
        pair[i] = internal::scaled_number(static_cast<float>(x.lanes[lane + i]), scale.inverse);
        if (kBits == 8) numbers[place + i] = pair[i];
      }
      if (kBits == 4 && place < count) {
        numbers[place / 2] = static_cast<std::uint8_t>((pair[0] & 0xfU) | pair[1] << 4U);
      }
    }
  }
};

/// A set of places of a part.
struct Places {
  static constexpr int kWords = kPart / 32;
  unsigned words[kWords];

  __device__ void clear() {
    if (threadIdx.x < kWords) words[threadIdx.x] = 0;
  }
  __device__ void insert(int place) { atomicOr(&words[place / 32], 1U << place % 32); }
  [[nodiscard]] __device__ bool holds(int place) const {
    return (words[place / 32] >> place % 32 & 1U) != 0;
  }
  /// The number of places before `place`.
  [[nodiscard]] __device__ int num_before(int place) const {
    int count = __popc(words[place / 32] & ((1U << place % 32) - 1U));
    for (int word = 0; word < place / 32; ++word) count += __popc(words[word]);
    return count;
  }
};

/// The sizes of the elements of a part. All threads of the block must call the functions together.
class Sizes {
 public:
  template <class T>
  __device__ Sizes(const Values<T>& x, int count) {
    int own = -1;
    for (int lane = 0; lane < kPerThread; ++lane) {
      lanes_[lane] = place_of(lane) < count ? float_size(x.lanes[lane]) : -1;
      own = max(own, lanes_[lane]);
    }
    largest_ = own;
  }

  [[nodiscard]] __device__ int lane(int index) const { return lanes_[index]; }
  [[nodiscard]] __device__ int largest() const { return block_max(largest_); }

  /// Chooses the elements among which threshold_of() looks. Some thread's largest size lies at the
  /// result or above it in `wanted` threads, so the `wanted` largest sizes do.
  __device__ void choose_candidates(int wanted) {
    __shared__ int candidates[kThreads];
    __shared__ unsigned num_found;
    const int least = threshold(
        wanted, [this](int size) { return __syncthreads_count(largest_ >= size ? 1 : 0); });
    if (threadIdx.x == 0) num_found = 0;
    __syncthreads();
    for (int lane = 0; lane < kPerThread; ++lane) {
      if (lanes_[lane] < least) continue;
      const unsigned place = atomicAdd(&num_found, 1U);
      if (place < kThreads) candidates[place] = lanes_[lane];
    }
    __syncthreads();
    are_few_ = num_found <= kThreads;
    candidate_ = threadIdx.x < num_found && are_few_ ? candidates[threadIdx.x] : -1;
    __syncthreads();
  }

  /// The number of sizes from `least` on, which is at least the threshold of choose_candidates().
  [[nodiscard]] __device__ int count_from(int least) const {
    if (are_few_) return __syncthreads_count(candidate_ >= least ? 1 : 0);
    int count = 0;
    for (int lane = 0; lane < kPerThread; ++lane) {
      count += __syncthreads_count(lanes_[lane] >= least ? 1 : 0);
    }
    return count;
  }

  /// The largest number that at least `wanted` sizes reach.
  [[nodiscard]] __device__ int threshold_of(int wanted) const {
    return threshold(wanted, [this](int size) { return count_from(size); });
  }

 private:
  template <class Count>
  __device__ static int threshold(int wanted, const Count& count_from) {
    int result = 0;
    for (int bit = 1 << 30; bit > 0; bit >>= 1) {
      if (count_from(result | bit) >= wanted) result |= bit;
    }
    return result;
  }

  int lanes_[kPerThread];
  /// The largest element of this thread.
  int largest_ = -1;
  int candidate_ = -1;
  bool are_few_ = false;
};

/// topk.
struct TopKParts {
  static constexpr int kBytes = static_cast<int>(internal::topk_bytes(kPart));

  template <class T>
  __device__ static void add(Values<T>& sum, const std::uint8_t* part, int count) {
    __shared__ T tile[kPart];
    const auto* const head = reinterpret_cast<const std::uint16_t*>(part);
    const internal::TopKLevels levels{widened(BFloat16{head[0]}), widened(BFloat16{head[1]})};
    if (isnan(levels.high)) {
      for (T& value : sum.lanes) value = static_cast<T>(levels.high);
      return;
    }
    for (int lane = 0; lane < kPerThread; ++lane) tile[place_of(lane)] = sum.lanes[lane];
    __syncthreads();
    const int k = static_cast<int>(threadIdx.x);
    if (k < internal::num_sent(count)) {
      const std::uint8_t* const bytes = part + internal::kTopKHeadBytes + 3 * k / 2;
      const unsigned both = bytes[0] | bytes[1] << 8U;
      const unsigned element = k % 2 == 0 ? both & 0xfffU : both >> 4U;
      const auto place = static_cast<int>(internal::topk_place(element));
      // A message comes from another rank.
      if (place < count) tile[place] += internal::topk_value<T>(element, levels);
    }
    __syncthreads();
    for (int lane = 0; lane < kPerThread; ++lane) sum.lanes[lane] = tile[place_of(lane)];
    __syncthreads();
  }

  template <class T>
  __device__ static void encode(const Values<T>& x, std::uint8_t* part, int count) {
    constexpr int kMostSent = static_cast<int>(internal::num_sent(kPart));
    __shared__ unsigned elements[kMostSent + 1];
    Sizes sizes(x, count);
    const int largest = sizes.largest();
    if (largest >= internal::kInfiniteSize) return encode_nan(part, count);
    const auto wanted = static_cast<int>(internal::num_sent(count));
    sizes.choose_candidates(wanted);
    const int least = sizes.threshold_of(wanted);
    const internal::TopKLevels levels{std::bit_cast<float>(least), std::bit_cast<float>(largest)};
    if (threadIdx.x <= kMostSent) elements[threadIdx.x] = 0;
    const Places& sent = sent_places(sizes, least, wanted - sizes.count_from(least + 1), count);
    for (int lane = 0; lane < kPerThread; ++lane) {
      const int place = place_of(lane);
      if (!sent.holds(place)) continue;
      elements[sent.num_before(place)] = internal::topk_element(
          static_cast<std::uint32_t>(place), x.lanes[lane] < T{0}, sizes.lane(lane), levels);
    }
    __syncthreads();
    write(part, levels, elements, static_cast<int>(internal::topk_bytes(count)));
    __syncthreads();
  }

 private:
  /// The places of the sizes above `least`, and of the first `num_equal` ones at `least`.
  __device__ static const Places& sent_places(const Sizes& sizes, int least, int num_equal,
                                              int count) {
    __shared__ Places sent;
    __shared__ Places equal;
    sent.clear();
    equal.clear();
    __syncthreads();
    for (int lane = 0; lane < kPerThread; ++lane) {
      const int place = place_of(lane);
      if (place >= count) continue;
      if (sizes.lane(lane) > least) sent.insert(place);
      if (sizes.lane(lane) == least) equal.insert(place);
    }
    __syncthreads();
    for (int lane = 0; lane < kPerThread; ++lane) {
      const int place = place_of(lane);
      if (equal.holds(place) && equal.num_before(place) < num_equal) sent.insert(place);
    }
    __syncthreads();
    return sent;
  }

  __device__ static void write_head(std::uint8_t* part, float low, float high) {
    auto* const head = reinterpret_cast<std::uint16_t*>(part);
    head[0] = rounded_to_bfloat16(low).bits;
    head[1] = rounded_to_bfloat16(high).bits;
  }

  __device__ static void write(std::uint8_t* part, const internal::TopKLevels& levels,
                               const unsigned* elements, int num_bytes) {
    const int byte = static_cast<int>(threadIdx.x);
    if (byte == 0) write_head(part, levels.low, levels.high);
    if (byte >= num_bytes - static_cast<int>(internal::kTopKHeadBytes)) return;
    const int first_bit = 8 * byte;
    const int element = first_bit / internal::kTopKElementBits;
    const int shift = first_bit % internal::kTopKElementBits;
    const unsigned bits = elements[element] | elements[element + 1] << internal::kTopKElementBits;
    part[internal::kTopKHeadBytes + byte] = static_cast<std::uint8_t>(bits >> shift);
  }

  __device__ static void encode_nan(std::uint8_t* part, int count) {
    const int byte = static_cast<int>(threadIdx.x);
    if (byte == 0) write_head(part, nanf(""), nanf(""));
    if (byte < internal::topk_bytes(count) - internal::kTopKHeadBytes) {
      part[internal::kTopKHeadBytes + byte] = 0;
    }
  }
};

template <class T, class Parts>
__global__ void __launch_bounds__(kThreads)
    work_on_parts(const WorkTable<T> __grid_constant__ work) {
  const std::int64_t num_parts = (work.numel + kPart - 1) / kPart;
  for (std::int64_t part = blockIdx.x; part < num_parts; part += gridDim.x) {
    const std::int64_t first = part * kPart;
    const std::int64_t begin = part * Parts::kBytes;
    const int count = work.numel - first < kPart ? static_cast<int>(work.numel - first) : kPart;
    Values<T> x;
    if (work.values != nullptr) {
      for (int lane = 0; lane < kPerThread; ++lane) {
        const int place = place_of(lane);
        if (place < count) x.lanes[lane] = work.values[first + place];
      }
    }
    for (std::int64_t i = 0; i < work.num_messages; ++i) {
      Parts::add(x, work.messages + i * work.distance + begin, count);
    }
    if (work.message != nullptr) Parts::encode(x, work.message + begin, count);
    Values<T> said;
    if (work.said != nullptr) Parts::add(said, work.said + begin, count);
    for (int lane = 0; lane < kPerThread; ++lane) {
      const int place = place_of(lane);
      if (place >= count) continue;
      if (work.plain != nullptr) work.plain[first + place] = x.lanes[lane];
      if (work.residual != nullptr) {
        T& residual = work.residual[first + place];
        residual = residual + x.lanes[lane] - said.lanes[lane];
      }
    }
  }
}

/// The kernel of a codec; null for codecs without kernels.
template <class T>
auto kernel_of(CodecKernels codec) -> decltype(&work_on_parts<T, TopKParts>) {
  switch (codec) {
    case CodecKernels::kBf16:
      return work_on_parts<T, SmallParts<internal::Bf16Format>>;
    case CodecKernels::kFp16:
      return work_on_parts<T, SmallParts<internal::Fp16Format>>;
    case CodecKernels::kInt8:
      return work_on_parts<T, ScaledParts<8>>;
    case CodecKernels::kInt4:
      return work_on_parts<T, ScaledParts<4>>;
    case CodecKernels::kTopK:
      return work_on_parts<T, TopKParts>;
    case CodecKernels::kNone:
      break;
  }
  return nullptr;
}

/// Encoded blocks begin where their scales may.
template <class Any>
void require_aligned(const Any* message, std::int64_t distance = 0) {
  if ((reinterpret_cast<std::uintptr_t>(message) | static_cast<std::uintptr_t>(distance)) %
          sizeof(float) ==
      0) {
    return;
  }
  throw std::logic_error("cuda_summands: a message that does not begin at 4 bytes");
}

template <class T>
void launch_work(const Stream& stream, const SummandWork& work) {
  const WorkTable<T> table{.values = static_cast<const T*>(work.values.data),
                           .messages = static_cast<const std::uint8_t*>(work.messages.first.data),
                           .distance = work.messages.distance,
                           .num_messages = work.messages.count,
                           .message = static_cast<std::uint8_t*>(work.message.data),
                           .plain = static_cast<T*>(work.plain.data),
                           .residual = static_cast<T*>(work.residual.data),
                           .said = static_cast<const std::uint8_t*>(work.said.data),
                           .numel = work.numel};
  require_aligned(table.messages, table.distance);
  require_aligned(table.message);
  require_aligned(table.said);
  const std::int64_t num_parts = (work.numel + kPart - 1) / kPart;
  const LaunchSize size{persistent_blocks(stream, num_parts, kBlocksPerMultiprocessor), kThreads};
  launch_kernel("the work of a sum", stream, size, kernel_of<T>(kernels_of(work.codec)), table);
}

constexpr CodecKernels kAll[] = {CodecKernels::kBf16, CodecKernels::kFp16, CodecKernels::kInt8,
                                 CodecKernels::kInt4, CodecKernels::kTopK};

}  // namespace

void load_summands() {
  for (const CodecKernels codec : kAll) {
    load_kernel(kernel_of<float>(codec));
    load_kernel(kernel_of<double>(codec));
  }
}

void cuda_summands(Stream& stream, const SummandWork& work) {
  const CudaDeviceScope scope(stream.device().index);
  if (work.dtype == DType::kFloat64) return launch_work<double>(stream, work);
  require_dtype(work.dtype, DType::kFloat32);
  launch_work<float>(stream, work);
}

}  // namespace gossamer
