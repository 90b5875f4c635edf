// The codec of Fp16Format.

#include "optim/codecs/small_float.hpp"
#include "optim/codecs/small_formats.hpp"

namespace gossamer {

const Codec& fp16_codec() {
  static const internal::SmallFloatCodec<internal::Fp16Format> kCodec;
  return kCodec;
}

}  // namespace gossamer
