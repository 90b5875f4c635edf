#pragma once
// The floating-point types of 16 bits that codecs send, one element at a time. Processors
// (small_float.hpp) and GPUs (optim/cuda) use the same functions.

#include <bit>
#include <cstdint>
#include <string_view>

#include "base/bfloat16.hpp"
#include "base/float16.hpp"
#include "base/host_device.hpp"
#include "optim/codec.hpp"

namespace gossamer::internal {

/// bfloat16: the upper half of a float32, rounded to nearest. It has the range of float32 and 8
/// significant bits, so two values that are sent alike differ by at most 2^-7 |x|. Values
/// above 3.39e38 become infinite, as in a model in bfloat16.
struct Bf16Format {
  static constexpr std::string_view kName = "bf16";
  static constexpr CodecKernels kKernels = CodecKernels::kBf16;
  GOSSAMER_INLINE_ANYWHERE static std::uint16_t encode(float value) {
    return rounded_to_bfloat16(value).bits;
  }
  GOSSAMER_INLINE_ANYWHERE static std::uint16_t encode_summand(float value) {
    return encode(value);
  }
  GOSSAMER_INLINE_ANYWHERE static float decode(std::uint16_t bits) {
    return widened(BFloat16{bits});
  }
};

/// IEEE 754 binary16, rounded to nearest, ties to even. It has 11 significant bits, so two values
/// that are sent alike differ by at most 2^-10 |x|, or by 2^-24 where |x| is below 2^-14. Values
/// above 65504, the largest finite one, become 65504: an infinity would turn the difference of two
/// blocks into NaN. NaN stays NaN. In a sum over ranks all values that round to more than 65504
/// become NaN, because a gradient that is too large must not look like an ordinary one.
struct Fp16Format {
  static constexpr std::string_view kName = "fp16";
  static constexpr CodecKernels kKernels = CodecKernels::kFp16;
  static constexpr std::uint32_t kSign = 0x8000'0000U;
  /// 65504 and 2^-14, the largest and the smallest normal value, as float32 bits.
  static constexpr std::uint32_t kLargest = 0x477f'e000U;
  /// 65520, the smallest value that binary16 rounds to infinity.
  static constexpr std::uint32_t kOverflow = 0x477f'f000U;
  static constexpr std::uint32_t kSmallestNormal = 0x3880'0000U;
  static constexpr std::uint32_t kInfinity = 0x7f80'0000U;
  static constexpr std::uint32_t kHalf = 0x3f00'0000U;
  /// The difference between the two exponents' biases, at the place of float32's exponent.
  static constexpr std::uint32_t kBias = 112U << 23U;

  GOSSAMER_INLINE_ANYWHERE static std::uint16_t encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t size = bits & ~kSign;
    const std::uint32_t finite = size < kLargest ? size : kLargest;
    const std::uint32_t normal = (finite - kBias + 0xfffU + (finite >> 13U & 1U)) >> 13U;
    // The values below 2^-14 are multiples of 2^-24. The last bit of 0.5 stands for 2^-24, so
    // adding 0.5 rounds to such a multiple.
    const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(finite) + 0.5F);
    const std::uint32_t rounded = finite < kSmallestNormal ? small - kHalf : normal;
    const std::uint32_t result = size > kInfinity ? 0x7e00U : rounded;
    return static_cast<std::uint16_t>((bits & kSign) >> 16U | result);
  }

  GOSSAMER_INLINE_ANYWHERE static std::uint16_t encode_summand(float value) {
    const std::uint32_t size = std::bit_cast<std::uint32_t>(value) & ~kSign;
    return size >= kOverflow ? std::uint16_t{0x7e00U} : encode(value);
  }

  GOSSAMER_INLINE_ANYWHERE static float decode(std::uint16_t half) {
    // encode() writes no infinity, so a full exponent is NaN.
    const std::uint32_t sign = (half & 0x8000U) << 16U;
    const float not_finite = std::bit_cast<float>(sign | 0x7fc0'0000U);
    return (half & 0x7fffU) >= 0x7c00U ? not_finite : widened(Float16{half});
  }
};

}  // namespace gossamer::internal
