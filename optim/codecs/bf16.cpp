// bfloat16: the upper half of a float32, rounded to nearest. It has the range of float32 and 8
// significant bits, so two values that are sent alike differ by at most 2^-7 |x|. Values
// above 3.39e38 become infinite, as in a model in bfloat16.

#include "base/bfloat16.hpp"
#include "optim/codecs/small_float.hpp"

namespace gossamer {
namespace {

struct Bf16Format {
  static constexpr std::string_view kName = "bf16";
  static constexpr CodecKernels kKernels = CodecKernels::kBf16;
  [[gnu::always_inline]] static std::uint16_t encode(float value) {
    return rounded_to_bfloat16(value).bits;
  }
  [[gnu::always_inline]] static std::uint16_t encode_summand(float value) { return encode(value); }
  [[gnu::always_inline]] static float decode(std::uint16_t bits) { return widened(BFloat16{bits}); }
};

}  // namespace

const Codec& bf16_codec() {
  static const internal::SmallFloatCodec<Bf16Format> kCodec;
  return kCodec;
}

}  // namespace gossamer
