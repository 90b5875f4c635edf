// The codec of Bf16Format.

#include "optim/codecs/small_float.hpp"
#include "optim/codecs/small_formats.hpp"

namespace gossamer {

const Codec& bf16_codec() {
  static const internal::SmallFloatCodec<internal::Bf16Format> kCodec;
  return kCodec;
}

}  // namespace gossamer
