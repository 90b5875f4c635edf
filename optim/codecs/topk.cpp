// The largest elements alone. Of every 1024 elements (Codec::kSummandPart), and of a shorter last
// part, one in 64 is sent: those with the largest |x|, of equal ones the first. A sent element has
// 12 bits:
//
//   place in the part   10 bits
//   sign                 1 bit, 1: negative
//   level                1 bit, 0: low, 1: high, whichever is nearer to |x|
//
// `low` and `high` are the smallest and the largest |x| that the part sends, in bfloat16. They
// stand in front of the elements. So 1024 elements take 28 bytes, 146 times fewer than in float32.
// SparseLoCo sends 2 bits for an element, too (Sarfi et al., "Communication Efficient LLM
// Pre-training with SparseLoCo", 2025).
//
// If one of a part's values is not finite, all of them decode to NaN.
//
// Only sums whose ranks keep what is left out can take this codec (Codec::is_sparse()).

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bfloat16.hpp"
#include "optim/codec.hpp"
#include "optim/codecs/float_sizes.hpp"
#include "optim/codecs/topk_elements.hpp"
#include "optim/simd.hpp"

namespace gossamer {
namespace {

using internal::float_size;
using internal::kInfiniteSize;
using internal::kTopKElementBits;
using internal::kTopKHeadBytes;
using internal::num_sent;
using internal::topk_bytes;
using internal::topk_element;
using internal::topk_place;
using internal::topk_value;
using internal::TopKLevels;

constexpr std::int64_t kPart = Codec::kSummandPart;
/// The size (float_size()) of each element of a part.
using Sizes = std::array<std::int32_t, kPart>;

[[gnu::always_inline]] inline std::int64_t count_from(const Sizes& sizes, std::int64_t numel,
                                                      std::int32_t least) {
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < numel; ++i) {
    count += sizes[static_cast<std::size_t>(i)] >= least ? 1 : 0;
  }
  return count;
}

/// The largest number that at least `wanted` sizes reach.
[[gnu::always_inline]] inline std::int32_t threshold_of(const Sizes& sizes, std::int64_t numel,
                                                        std::int64_t wanted) {
  std::int32_t threshold = 0;
  for (std::int32_t bit = 1 << 30; bit > 0; bit >>= 1) {
    if (count_from(sizes, numel, threshold | bit) >= wanted) threshold |= bit;
  }
  return threshold;
}

/// Writes and reads numbers of kTopKElementBits bits, one after the other, the low bits first.
class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* to) : to_(to) {}
  void write(std::uint32_t value) {
    bits_ |= value << num_bits_;
    num_bits_ += kTopKElementBits;
    while (num_bits_ >= 8) {
      *to_++ = static_cast<std::uint8_t>(bits_);
      bits_ >>= 8U;
      num_bits_ -= 8;
    }
  }
  void finish() {
    if (num_bits_ > 0) *to_ = static_cast<std::uint8_t>(bits_);
  }

 private:
  std::uint8_t* to_;
  std::uint32_t bits_ = 0;
  int num_bits_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const std::uint8_t* from) : from_(from) {}
  std::uint32_t read() {
    while (num_bits_ < kTopKElementBits) {
      bits_ |= static_cast<std::uint32_t>(*from_++) << num_bits_;
      num_bits_ += 8;
    }
    const std::uint32_t value = bits_ & ((1U << kTopKElementBits) - 1U);
    bits_ >>= static_cast<unsigned>(kTopKElementBits);
    num_bits_ -= kTopKElementBits;
    return value;
  }

 private:
  const std::uint8_t* from_;
  std::uint32_t bits_ = 0;
  int num_bits_ = 0;
};

/// A part that decodes to NaN.
inline void encode_nan(std::uint8_t* part, std::int64_t count) {
  const std::uint16_t nan = rounded_to_bfloat16(std::numeric_limits<float>::quiet_NaN()).bits;
  std::memset(part, 0, static_cast<std::size_t>(topk_bytes(count)));
  std::memcpy(part, &nan, sizeof(nan));
  std::memcpy(part + sizeof(nan), &nan, sizeof(nan));
}

template <class T>
struct EncodeLargest {
  const T* from;
  std::uint8_t* to;
  std::int64_t numel;

  [[gnu::always_inline]] void operator()() const {
    std::uint8_t* part = to;
    for (std::int64_t first = 0; first < numel; first += kPart) {
      const std::int64_t count = std::min(kPart, numel - first);
      encode_part(from + first, part, count);
      part += topk_bytes(count);
    }
  }

  [[gnu::always_inline]] static void encode_part(const T* x, std::uint8_t* part,
                                                 std::int64_t count) {
    Sizes sizes;
    std::int32_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t size = float_size(x[i]);
      sizes[static_cast<std::size_t>(i)] = size;
      largest = size > largest ? size : largest;
    }
    if (largest >= kInfiniteSize) return encode_nan(part, count);
    const std::int64_t wanted = num_sent(count);
    const std::int32_t least = threshold_of(sizes, count, wanted);
    const float low = std::bit_cast<float>(least);
    const float high = std::bit_cast<float>(largest);
    const std::array<std::uint16_t, 2> head = {rounded_to_bfloat16(low).bits,
                                               rounded_to_bfloat16(high).bits};
    std::memcpy(part, head.data(), sizeof(head));
    // Those above the threshold are sent in any case, of those at the threshold the first ones.
    std::int64_t num_equal = wanted - count_from(sizes, count, least + 1);
    BitWriter writer(part + kTopKHeadBytes);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t size = sizes[static_cast<std::size_t>(i)];
      if (size < least || (size == least && num_equal-- <= 0)) continue;
      writer.write(topk_element(static_cast<std::uint32_t>(i), x[i] < T{0}, size, {low, high}));
    }
    writer.finish();
  }
};

template <class T>
void add_part(T* sum, const std::uint8_t* part, std::int64_t count) {
  std::array<std::uint16_t, 2> head = {};
  std::memcpy(head.data(), part, sizeof(head));
  const TopKLevels levels{widened(BFloat16{head[0]}), widened(BFloat16{head[1]})};
  if (std::isnan(levels.high)) return std::fill(sum, sum + count, static_cast<T>(levels.high));
  BitReader reader(part + kTopKHeadBytes);
  for (std::int64_t i = 0; i < num_sent(count); ++i) {
    const std::uint32_t element = reader.read();
    const std::int64_t place = topk_place(element);
    // A message comes from another rank.
    if (place < count) sum[place] += topk_value<T>(element, levels);
  }
}

template <class T>
void add_largest(const Block& x, const ConstBlock& from) {
  const auto* part = static_cast<const std::uint8_t*>(from.data);
  T* const sum = static_cast<T*>(x.data);
  for (std::int64_t first = 0; first < x.numel; first += kPart) {
    const std::int64_t count = std::min(kPart, x.numel - first);
    add_part(sum + first, part, count);
    part += topk_bytes(count);
  }
}

class TopKCodec : public Codec {
 public:
  [[nodiscard]] std::string_view name() const override { return "topk"; }
  [[nodiscard]] CodecKernels kernels() const override { return CodecKernels::kTopK; }
  [[nodiscard]] bool is_sparse() const override { return true; }
  [[nodiscard]] std::int64_t summand_bytes(std::int64_t numel) const override {
    return numel / kPart * topk_bytes(kPart) + topk_bytes(numel % kPart);
  }
  void encode_summand(const Block& to, const ConstBlock& x, SimdPath simd) const override {
    require_summand(*this, to, x.numel);
    auto* const bytes = static_cast<std::uint8_t*>(to.data);
    if (x.dtype == DType::kFloat32) {
      return run_on(simd, EncodeLargest<float>{static_cast<const float*>(x.data), bytes, x.numel});
    }
    require_dtype(x.dtype, DType::kFloat64);
    run_on(simd, EncodeLargest<double>{static_cast<const double*>(x.data), bytes, x.numel});
  }
  void add_summand(const Block& x, const ConstBlock& summand, SimdPath /*simd*/) const override {
    require_summand(*this, summand, x.numel);
    if (x.dtype == DType::kFloat32) return add_largest<float>(x, summand);
    require_dtype(x.dtype, DType::kFloat64);
    add_largest<double>(x, summand);
  }
};

}  // namespace

const Codec& topk_codec() {
  static const TopKCodec kCodec;
  return kCodec;
}

}  // namespace gossamer
