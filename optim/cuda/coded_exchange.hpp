#pragma once
// The part of the sweep kernel that mixes in encoded blocks, encodes the next block, and measures
// differences. optim/exchange_work.hpp says what that work is. The arithmetic and its order are the
// same as on processors, so a GPU and a processor may exchange encoded blocks with each other.
//
// All code here also runs on processors, so that tests need no GPU.

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/host_device.hpp"
#include "optim/codec.hpp"
#include "optim/codecs/grid_points.hpp"
#include "optim/codecs/small_formats.hpp"
#include "optim/cuda/pack.hpp"
#include "optim/difference_stats.hpp"

namespace gossamer {

/// What a launch decodes, encodes and measures. T: the type of the parameters.
template <class T>
struct CodedExchange {
  CodecKernels codec = CodecKernels::kNone;
  /// True: the inboxes hold encoded blocks, and their differences to `own` are mixed in.
  bool decodes = false;
  bool encodes = false;
  /// True: the differences are added to the source as they are, and the source is not scaled.
  bool adds_up = false;
  /// The encoded block of this rank, which the pass reads and writes.
  std::uint8_t* own = nullptr;
  /// Of the next grid: 1 / its step, seed_of() it, and the place of the block's first element.
  T scale = 1;
  std::uint32_t seed = 0;
  std::uint32_t place = 0;
  /// Where the differences go; null: the pass does not measure them.
  DeviceDifferences* stats = nullptr;
  /// The parameters before any mixing, with which plain inboxes are compared.
  const T* measured = nullptr;
  /// The step of the grid with which the inboxes were encoded.
  float step = 1.0F;
};

/// The differences that one thread has seen.
template <class T>
struct SeenDifferences {
  /// The largest element of plain inboxes; infinite where one is not a number.
  T largest = 0;
  /// size_of_difference() of encoded ones.
  std::uint32_t largest_size = 0;
  std::uint32_t num_wide = 0;

  GOSSAMER_HOST_DEVICE void add_plain(T x, T heard) {
    const T difference = x > heard ? x - heard : heard - x;
    if (difference > largest) largest = difference;
    if (difference != difference) largest = std::numeric_limits<T>::infinity();
  }
  GOSSAMER_HOST_DEVICE void add_coded(std::uint8_t heard, std::uint8_t own) {
    const std::uint32_t size = internal::size_of_difference(heard, own);
    if (size > largest_size) largest_size = size;
    if (size >= internal::kWideDifference) ++num_wide;
  }
  /// The bits of the largest difference as a float.
  GOSSAMER_HOST_DEVICE std::uint32_t largest_bits(const CodedExchange<T>& coded) const {
    float result = rounded_to_float(static_cast<double>(largest));
    if (largest_size > 0) {
      const bool is_int8 = coded.codec == CodecKernels::kInt8;
      const std::uint32_t unit = is_int8 ? internal::kStepUnit<8> : internal::kStepUnit<4>;
      const std::uint32_t most = is_int8 ? 127 : 7;
      const std::uint32_t steps = largest_size / unit;
      // At the end of the range the size of the difference is unknown.
      result = steps >= most ? std::numeric_limits<float>::infinity()
                             : static_cast<float>(steps) * coded.step;
    }
    return std::bit_cast<std::uint32_t>(result);
  }
};

namespace internal {

/// kCount numbers of a grid with kBits bits, from element `place` of an encoded block on, which are
/// 16 times their size where they have 4 bits. `place` is a multiple of kCount.
template <int kBits, std::int64_t kCount>
GOSSAMER_HOST_DEVICE Pack<std::uint8_t, kCount> load_numbers(const std::uint8_t* block,
                                                             std::int64_t place) {
  if constexpr (kBits == 8) {
    return load_pack<Pack<std::uint8_t, kCount>>(block + place);
  } else if constexpr (kCount == 1) {
    const std::uint8_t both = block[place / 2];
    const unsigned number = place % 2 == 0 ? both << 4U : both & 0xf0U;
    return {{static_cast<std::uint8_t>(number)}};
  } else {
    const auto bytes = load_pack<Pack<std::uint8_t, kCount / 2>>(block + place / 2);
    Pack<std::uint8_t, kCount> numbers;
    for (std::size_t i = 0; i < kCount / 2; ++i) {
      numbers.lanes[2 * i] = static_cast<std::uint8_t>(bytes.lanes[i] << 4U);
      numbers.lanes[2 * i + 1] = static_cast<std::uint8_t>(bytes.lanes[i] & 0xf0U);
    }
    return numbers;
  }
}

/// Writes the first `count` of kCount numbers, which are below 2^kBits, from element `place` on.
/// `place` is even.
template <int kBits, std::int64_t kCount>
GOSSAMER_HOST_DEVICE void store_numbers(std::uint8_t* block, std::int64_t place,
                                        const Pack<std::uint8_t, kCount>& numbers,
                                        std::int64_t count) {
  if constexpr (kBits == 8) {
    if (count == kCount) return store_pack(block + place, numbers);
    for (std::int64_t i = 0; i < count; ++i) {
      block[place + i] = numbers.lanes[static_cast<std::size_t>(i)];
    }
  } else {
    Pack<std::uint8_t, kCount / 2> bytes;
    for (std::size_t i = 0; i < kCount / 2; ++i) {
      bytes.lanes[i] =
          static_cast<std::uint8_t>(numbers.lanes[2 * i] | numbers.lanes[2 * i + 1] << 4U);
    }
    if (count == kCount) return store_pack(block + place / 2, bytes);
    for (std::int64_t i = 0; i < (count + 1) / 2; ++i) {
      block[place / 2 + i] = bytes.lanes[static_cast<std::size_t>(i)];
    }
  }
}

}  // namespace internal

/// The decoding and encoding of kCount neighbouring elements.
template <class T>
struct CodedElements {
  const CodedExchange<T>& coded;

  /// sum += weight * (decoded(heard) - decoded(own)), from element `place` on. `weight`: on a grid,
  /// for one step of 8 bits (coded_weight()).
  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void add_difference(Pack<T, kCount>& sum, const void* heard, T weight,
                                           std::int64_t place, SeenDifferences<T>& seen) const {
    switch (coded.codec) {
      case CodecKernels::kBf16:
        return add_small<internal::Bf16Format>(sum, heard, weight, place);
      case CodecKernels::kFp16:
        return add_small<internal::Fp16Format>(sum, heard, weight, place);
      case CodecKernels::kInt8:
        return add_steps<8>(sum, heard, weight, place, seen);
      case CodecKernels::kInt4:
        return add_steps<4>(sum, heard, weight, place, seen);
      case CodecKernels::kNone:
      case CodecKernels::kTopK:
        break;
    }
  }

  /// own <- encoded(x) for the first `count` elements, from element `place` on, which is even.
  template <std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void encode(const Pack<T, kCount>& x, std::int64_t place,
                                   std::int64_t count) const {
    switch (coded.codec) {
      case CodecKernels::kBf16:
        return encode_small<internal::Bf16Format>(x, place, count);
      case CodecKernels::kFp16:
        return encode_small<internal::Fp16Format>(x, place, count);
      case CodecKernels::kInt8:
        return encode_numbers<8>(x, place, count);
      case CodecKernels::kInt4:
        return encode_numbers<4>(x, place, count);
      case CodecKernels::kNone:
      case CodecKernels::kTopK:
        break;
    }
  }

 private:
  template <class Format, std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void add_small(Pack<T, kCount>& sum, const void* heard, T weight,
                                      std::int64_t place) const {
    using Codes = Pack<std::uint16_t, kCount>;
    const auto theirs = load_pack<Codes>(static_cast<const std::uint16_t*>(heard) + place);
    const auto ours = load_pack<Codes>(reinterpret_cast<const std::uint16_t*>(coded.own) + place);
    for (std::size_t i = 0; i < kCount; ++i) {
      const T difference = static_cast<T>(Format::decode(theirs.lanes[i])) -
                           static_cast<T>(Format::decode(ours.lanes[i]));
      sum.lanes[i] += weight * difference;
    }
  }

  template <int kBits, std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void add_steps(Pack<T, kCount>& sum, const void* heard, T weight,
                                      std::int64_t place, SeenDifferences<T>& seen) const {
    const auto theirs =
        internal::load_numbers<kBits, kCount>(static_cast<const std::uint8_t*>(heard), place);
    const auto ours = internal::load_numbers<kBits, kCount>(coded.own, place);
    for (std::size_t i = 0; i < kCount; ++i) {
      sum.lanes[i] += weight * static_cast<T>(internal::grid_steps(theirs.lanes[i], ours.lanes[i]));
      if (coded.stats != nullptr) seen.add_coded(theirs.lanes[i], ours.lanes[i]);
    }
  }

  template <class Format, std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void encode_small(const Pack<T, kCount>& x, std::int64_t place,
                                         std::int64_t count) const {
    Pack<std::uint16_t, kCount> codes;
    for (std::size_t i = 0; i < kCount; ++i) {
      codes.lanes[i] = Format::encode(static_cast<float>(x.lanes[i]));
    }
    auto* const to = reinterpret_cast<std::uint16_t*>(coded.own) + place;
    if (count == kCount) return store_pack(to, codes);
    for (std::int64_t i = 0; i < count; ++i) to[i] = codes.lanes[static_cast<std::size_t>(i)];
  }

  template <int kBits, std::int64_t kCount>
  GOSSAMER_HOST_DEVICE void encode_numbers(const Pack<T, kCount>& x, std::int64_t place,
                                           std::int64_t count) const {
    Pack<std::uint8_t, kCount> numbers{};
    for (std::int64_t i = 0; i < count; ++i) {
      const auto lane = static_cast<std::size_t>(i);
      const std::uint32_t where = coded.place + static_cast<std::uint32_t>(place + i);
      const T r = static_cast<T>(internal::dither(coded.seed, where));
      numbers.lanes[lane] = internal::grid_number<kBits>(x.lanes[lane], coded.scale, r);
    }
    internal::store_numbers<kBits, kCount>(coded.own, place, numbers, count);
  }
};

/// The weight of an inbox, as add_difference() takes it.
template <class T>
T coded_weight(CodecKernels codec, double weight, const Grid& grid) {
  const bool is_int8 = codec == CodecKernels::kInt8;
  if (!is_int8 && codec != CodecKernels::kInt4) return static_cast<T>(weight);
  const T factor = static_cast<T>(weight * std::ldexp(1.0, grid.exponent));
  return factor / static_cast<T>(is_int8 ? internal::kStepUnit<8> : internal::kStepUnit<4>);
}

}  // namespace gossamer
