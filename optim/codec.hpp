#pragma once
// A codec turns a block into fewer bytes for the wire. Every element is encoded by itself, so a
// part of an encoded block is the encoded part of the block.
//
// Encoded mixing keeps the mean of all ranks: a rank adds the differences between the encoded
// blocks that it hears and its own encoded block, and not the blocks themselves:
//
//   x <- keep * x + sum of weight * (decoded(heard) - decoded(own))
//
// One rank of a pair gains what the other one loses, however coarse the codec is. Mixing in
// decoded(heard) alone would round the mean in every round, by up to 0.03 at |x| = 30 in bfloat16.
//
// A new codec is one file in optim/codecs and one row in its registry.cpp. Codecs are constants,
// immutable and thread safe. They run on processors only.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.hpp"
#include "optim/optimizer.hpp"
#include "optim/simd.hpp"

namespace gossamer {

class Codec {
 public:
  virtual ~Codec() = default;
  /// The registry name, as `bf16`.
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Bytes of one encoded element.
  [[nodiscard]] virtual std::int64_t bytes_per_element() const = 0;
  /// to <- encoded(x). `x` is float32 or float64. `to` has the type uint8 and x.numel *
  /// bytes_per_element() elements. Throws std::logic_error for other types and sizes.
  virtual void encode(const Block& to, const ConstBlock& x, SimdPath simd) const = 0;
  /// x += weight * (decoded(heard) - decoded(own)). Types and sizes as in encode().
  virtual void add_difference(const Block& x, const Inbox& heard, const ConstBlock& own,
                              SimdPath simd) const = 0;
};

/// How encoded blocks take part in an update. The memory belongs to a lane.
struct Coding {
  /// Null: nothing is encoded.
  const Codec* codec = nullptr;
  /// The encoded block that this rank sent in the round of the inboxes.
  Block own = {};
  /// The inboxes hold encoded blocks, and their differences to `own` are mixed in. False: the
  /// inboxes hold plain values.
  bool decodes = false;
  /// The pass ends with own <- encoded(x), for the next round.
  bool encodes = false;
};

/// The number of uint8 elements of an encoded block of `numel` elements.
inline std::int64_t encoded_bytes(const Codec& codec, std::int64_t numel) {
  return numel * codec.bytes_per_element();
}

/// The encoded form of the elements [first, first + numel) of a block.
template <class AnyBlock>
AnyBlock encoded_part(const Codec& codec, const AnyBlock& encoded, std::int64_t first,
                      std::int64_t numel) {
  return part_of(encoded, encoded_bytes(codec, first), encoded_bytes(codec, numel));
}

/// The most ranks of a group that send fewer bytes when every member sends its encoded block to
/// every other member than when they sum plain float32 blocks (exchange_bytes() in
/// topology/rank_round.hpp). Larger groups use the sum.
std::int64_t most_coded_members(const Codec& codec);

struct CodecEntry {
  std::string_view name;
  std::string_view summary;
  /// Null: blocks are sent as they are.
  const Codec& (*codec)() = nullptr;
};

std::span<const CodecEntry> codec_table();
std::vector<std::string> codec_names();
/// Null for `fp32`, which sends blocks as they are. Throws ConfigError for an unknown name.
const Codec* find_codec(std::string_view name);

}  // namespace gossamer
