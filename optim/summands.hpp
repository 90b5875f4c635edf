#pragma once
// The work of a sum under a codec on blocks: to encode values, to add up encoded values, and to
// find what a message lacks of its values. core/exchange/coded_sum.hpp says what such a sum is.
//
// The work goes part by part (Codec::kSummandPart). The values of a part are either plain values,
// or the sum of messages, which are added up from 0 in their order in the type of the block. The
// values then go to one place: into a message, into a plain block, or into a residual.
//
// Errors: std::logic_error for types and sizes that do not fit, and for work with no place for its
// values. Thread safety: the same as the stream's.

#include <cstdint>

#include "base/stream.hpp"
#include "optim/codec.hpp"

namespace gossamer {

/// Encoded blocks of the same size, at equal distances in memory.
struct SummandRow {
  /// The first one: Codec::summand_bytes() bytes.
  ConstBlock first = {};
  /// Bytes from one to the next.
  std::int64_t distance = 0;
  std::int64_t count = 0;

  [[nodiscard]] ConstBlock at(std::int64_t index) const {
    ConstBlock block = first;
    block.data = static_cast<const std::byte*>(first.data) + index * distance;
    return block;
  }
};

/// All memory lies on the stream's device, and must stay until the work is done. So must the codec.
struct SummandWork {
  const Codec& codec;
  /// The plain values: float32 or float64. Null data: the values are the sum of `messages`.
  ConstBlock values = {};
  SummandRow messages = {};

  /// message <- encoded(values). Null data: not this place.
  Block message = {};
  /// plain <- values. Null data: not this place.
  Block plain = {};
  /// residual += values - decoded(said). Null data: not this place.
  Block residual = {};
  ConstBlock said = {};
  /// The type and the number of the values.
  DType dtype = DType::kFloat32;
  std::int64_t numel = 0;
};

/// Gives the work to the stream. On a GPU, throws ConfigError for a codec without kernels.
void enqueue_summands(Stream& stream, const SummandWork& work, SimdPath simd = best_simd_path());

}  // namespace gossamer
