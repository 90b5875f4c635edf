// One byte for an element: differences of up to 127 steps of a grid, and sums in 8 bits.

#include "optim/codecs/grid_codec.hpp"

namespace gossamer {

const Codec& int8_codec() {
  static const internal::GridCodec<8> kCodec;
  return kCodec;
}

}  // namespace gossamer
