#pragma once
// A codec turns a block into fewer bytes for the wire. Every Codec encodes summands, for sums over
// ranks (core/exchange/coded_sum.hpp). In a sum a rank has no value near the value that it
// receives, so the encoded values must be complete without the receiver's own. A sum's rounding
// moves the mean. So an algorithm that needs the exact mean adds the part that a message has left
// out to the next message (error feedback: Seide et al., "1-Bit Stochastic Gradient Descent",
// 2014).
//
// A MixingCodec also encodes blocks for mixing. There every element is encoded by itself, so a part
// of an encoded block that begins at a multiple of MixingCodec::kGrain is the encoded part of the
// block. Encoded mixing keeps the mean of all ranks: a rank adds the differences between the
// encoded blocks that it hears and its own encoded block, and not the blocks themselves:
//
//   x <- keep * x + sum of weight * (decoded(heard) - decoded(own))
//
// One rank of a pair gains what the other rank loses, however coarse the codec is. Mixing in
// decoded(heard) alone would round the mean in every round, by up to 0.03 at |x| = 30 in bfloat16.
//
// A new codec is one file in optim/codecs and one row in its registry.cpp. Codecs are constants,
// immutable and thread safe. A codec runs on processors, and on GPUs if it has kernels
// (Codec::kernels()).

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/host_device.hpp"
#include "base/option.hpp"
#include "base/types.hpp"
#include "optim/optimizer.hpp"
#include "optim/simd.hpp"

namespace gossamer {

/// The grid of a codec with needs_grid(): values are sent as steps of 2^exponent. All ranks use the
/// same grid in a round. Other codecs ignore it.
struct Grid {
  int exponent = 0;
  /// The number of the round; decides on the codec's pseudo-random numbers.
  std::uint64_t seed = 0;
  /// The place of the first element in its whole block.
  std::int64_t first = 0;

  friend bool operator==(const Grid&, const Grid&) = default;
  /// Returns this grid for the part of a block from element `offset` on.
  [[nodiscard]] Grid from(std::int64_t offset) const { return {exponent, seed, first + offset}; }
};

/// How far the differences of some elements went, for codecs with needs_grid().
struct DifferenceRange {
  /// The largest difference, in steps of the grid, at most MixingCodec::most_steps() + 1.
  std::int32_t largest_steps = 0;
  /// Number of differences in the upper half of the range. A difference beyond the range looks like
  /// a smaller one, so many of them say that the grid is too fine, or soon will be.
  std::int64_t num_wide = 0;
};

class MixingCodec;

/// The codecs that have kernels: for mixing in optim/cuda/coded_exchange.hpp, and for sums in
/// optim/cuda/summands.cu.
enum class CodecKernels : std::uint8_t { kNone, kBf16, kFp16, kInt8, kInt4, kTopK };

/// The encoding for sums. A value that is not finite, or that lies beyond the codec's range, makes
/// the sum not finite, so that all ranks see it.
class Codec {
 public:
  virtual ~Codec() = default;
  /// The registry name, as `bf16`.
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// This codec, if it also encodes blocks for mixing; else null, and only sums can take it.
  [[nodiscard]] virtual const MixingCodec* mixing() const { return nullptr; }
  /// True: the ranks must agree on a Grid for every round of mixing.
  [[nodiscard]] bool needs_grid() const;
  /// True: an encoded block lacks elements, so only sums with error feedback can take the codec.
  [[nodiscard]] virtual bool is_sparse() const { return false; }

  /// The kernels that do on GPUs what this codec does on processors, with the same bits. A codec
  /// without kernels, as one from another program, works on processors only.
  [[nodiscard]] virtual CodecKernels kernels() const { return CodecKernels::kNone; }

  /// Elements. In a sum, a part of a block that begins at a multiple of it is encoded by itself.
  static constexpr std::int64_t kSummandPart = 1024;
  /// Bytes of `numel` elements that are encoded for a sum. Where a part begins at element `numel`,
  /// its bytes begin here.
  [[nodiscard]] virtual std::int64_t summand_bytes(std::int64_t numel) const = 0;
  /// to <- x, encoded for a sum. `x` is float32 or float64. `to` has the type uint8 and
  /// summand_bytes(x.numel) elements. Throws std::logic_error for other types and sizes.
  virtual void encode_summand(const Block& to, const ConstBlock& x, SimdPath simd) const = 0;
  /// x += what encode_summand() has written to `summand`.
  virtual void add_summand(const Block& x, const ConstBlock& summand, SimdPath simd) const = 0;
};

/// A codec that also encodes blocks for mixing.
class MixingCodec : public Codec {
 public:
  [[nodiscard]] const MixingCodec* mixing() const final { return this; }
  /// Bytes of `numel` encoded elements.
  [[nodiscard]] virtual std::int64_t encoded_bytes(std::int64_t numel) const = 0;
  /// The largest difference that a grid has room for, in its steps. 0: the codec needs no grid.
  [[nodiscard]] virtual std::int32_t most_steps() const { return 0; }
  /// to <- encoded(x). Types as in encode_summand(); `to` has encoded_bytes(x.numel) elements.
  virtual void encode(const Block& to, const ConstBlock& x, const Grid& grid,
                      SimdPath simd) const = 0;
  /// x += weight * (decoded(heard) - decoded(own)). With a grid: weight * (what the codec takes for
  /// the difference), because an encoded block alone does not say what its values are. Types and
  /// sizes as in encode(). `grid` is the one that both blocks were encoded with.
  virtual DifferenceRange add_difference(const Block& x, const Inbox& heard, const ConstBlock& own,
                                         const Grid& grid, SimdPath simd) const = 0;

  /// Elements. Parts of an encoded block begin at a multiple of it.
  static constexpr std::int64_t kGrain = 8;
};

inline bool Codec::needs_grid() const { return mixing() != nullptr && mixing()->most_steps() > 0; }

/// A size as a float; infinite beyond the largest float.
GOSSAMER_HOST_DEVICE inline float rounded_to_float(double size) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  if (size > static_cast<double>(kLargest)) return std::numeric_limits<float>::infinity();
  return static_cast<float>(size);
}

/// How encoded blocks take part in an update. The memory belongs to a lane.
struct Coding {
  /// Null: nothing is encoded.
  const MixingCodec* codec = nullptr;
  /// The encoded block that this rank sent in the round of the inboxes.
  Block own = {};
  /// The inboxes hold encoded blocks, and their differences to `own` are mixed in. False: the
  /// inboxes hold plain values.
  bool decodes = false;
  /// The pass ends with own <- encoded(x), for the next round.
  bool encodes = false;
  /// The grids of `own` before the pass, and of `own` as the pass writes it.
  Grid grid = {};
  Grid next_grid = {};
};

/// Throws std::logic_error unless `encoded` can be the encoded form of `numel` elements.
void require_encoded(const MixingCodec& codec, const ConstBlock& encoded, std::int64_t numel);
/// Throws std::logic_error unless `encoded` can be the form in which `numel` elements go into a
/// sum.
void require_summand(const Codec& codec, const ConstBlock& encoded, std::int64_t numel);
/// Throws std::logic_error unless both are the same.
void require_dtype(DType found, DType wanted);

/// The codec's kernels. Throws ConfigError for a codec without kernels.
CodecKernels kernels_of(const Codec& codec);
/// Why a codec cannot work on GPUs, with the codecs that can; empty: it can.
std::string why_not_on_gpu(const Codec& codec);

/// Throws std::logic_error unless a part of an encoded block may begin at element `first`.
void require_grain(std::int64_t first);

/// The encoded form of the elements [first, first + numel) of a block.
template <class AnyBlock>
AnyBlock encoded_part(const MixingCodec& codec, const AnyBlock& encoded, std::int64_t first,
                      std::int64_t numel) {
  require_grain(first);
  return part_of(encoded, codec.encoded_bytes(first), codec.encoded_bytes(numel));
}

/// The largest group that sends encoded blocks. Up to this number of ranks, encoded blocks from
/// every member to every other member are fewer bytes than a sum of plain float32 blocks
/// (exchange_bytes() in topology/rank_round.hpp). Larger groups use the sum.
std::int64_t most_coded_members(const MixingCodec& codec);

struct CodecEntry {
  std::string_view name;
  std::string_view summary;
  /// Null: blocks are sent as they are.
  const Codec& (*codec)() = nullptr;
};

std::span<const CodecEntry> codec_table();
/// `own` are a user's rows, whose names stand behind the names of the table.
std::vector<std::string> codec_names(std::span<const CodecEntry> own = {});

inline constexpr ChoiceOption kCodecName{
    "codec",
    "what ranks send in place of their parameters, or of gradients (allreduce), or of moves "
    "(outer of all ranks, topk there alone)",
    {.fallback = "fp32", .names = [] { return codec_names(); }}};

/// Returns null for `fp32`, which sends blocks as they are. Throws ConfigError for an unknown name.
const Codec* find_codec(std::string_view name, std::span<const CodecEntry> own = {});

}  // namespace gossamer
