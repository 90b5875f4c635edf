// Half a byte for an element: differences of up to 7 steps of a grid, and sums in 4 bits.

#include "optim/codecs/grid_codec.hpp"

namespace gossamer {

const Codec& int4_codec() {
  static const internal::GridCodec<4> kCodec;
  return kCodec;
}

}  // namespace gossamer
