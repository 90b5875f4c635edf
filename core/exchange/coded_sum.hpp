#pragma once
// The sum of the blocks of n ranks, whose messages a codec encodes. It has two phases, as ByteGrad
// of Bagua has (Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB
// 2021). A block is cut into n shards of equal size; the last ones may be shorter, or empty.
//
//   1  Every rank encodes its shard j and sends it to rank j. Rank j decodes the shards of all
//      ranks and adds them in rank order, in the type of the block.
//   2 Rank j encodes the sum and sends it to all others. All ranks decode the same bytes.
//
//   result = R(R(x_0) + R(x_1) + ... + R(x_n-1))        R: the codec's rounding
//
// So the results of all ranks are the same, bit for bit. A rank's own shard goes through the codec
// like the shards of the other ranks. Otherwise the result would depend on where a shard begins,
// and so on the sizes of buckets.
//
// A codec that leaves out elements (Codec::is_sparse()) has one phase. Every rank sends its whole
// encoded block to all others, and every rank adds up the same blocks in rank order. A second phase
// would encode the sum again, and leave out most of it. Here the block is a single shard.
//
//   result = R(x_0) + R(x_1) + ... + R(x_n-1)
//
// The elements behind the first LaneSpec::num_coded are sent as they are. These plain elements have
// shards of their own, and each message begins with its plain shard.
//
// Errors: std::logic_error for blocks that do not fit; ConfigError on a GPU for a codec without
// kernels. Immutable.

#include <cstdint>

#include "base/stream.hpp"
#include "base/types.hpp"
#include "base/worker_pool.hpp"
#include "core/exchange/lane.hpp"
#include "optim/codec.hpp"
#include "optim/summands.hpp"

namespace gossamer {

class CodedSum {
 public:
  /// `spec`: of the blocks. The codec must outlive this object and its copies.
  CodedSum(const Codec& codec, const LaneSpec& spec, int num_ranks);

  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  /// True: one phase.
  [[nodiscard]] bool gathers() const { return codec_->is_sparse(); }
  [[nodiscard]] int num_shards() const { return gathers() ? 1 : num_ranks_; }
  /// Shards that hold something: the first ones.
  [[nodiscard]] std::int64_t num_filled() const;
  /// Bytes of every message: the bytes of a full shard, also where the shard is shorter.
  [[nodiscard]] std::int64_t message_bytes() const;
  /// The distance from one message to the next in memory, which keeps each message aligned.
  [[nodiscard]] std::int64_t message_distance() const;
  /// Bytes that a rank sends in all phases.
  [[nodiscard]] double bytes_sent() const {
    return (gathers() ? 1.0 : 2.0) * (num_ranks_ - 1) * static_cast<double>(message_bytes());
  }

  // The following functions give work to a stream, with memory that must stay until it is done. A
  // SummandRow of messages begins with the whole message of rank 0, and has one for each rank.

  /// message <- shard `shard` of `whole`. Bytes behind a shorter shard stay as they are.
  void encode(Stream& stream, std::int64_t shard, const ConstBlock& whole, const Block& message,
              SimdPath simd) const;
  /// whole <- the sum of the messages of all ranks, in rank order, if gathers().
  void gather(Stream& stream, const SummandRow& messages, const Block& whole, SimdPath simd) const;
  /// result <- the sum of the messages with the shard of each rank, in rank order.
  void add(Stream& stream, std::int64_t shard, const SummandRow& messages, const Block& result,
           SimdPath simd) const;
  /// Shard `shard` of `to` += what its message does not say of `whole`.
  void accumulate_residual(Stream& stream, std::int64_t shard, const ConstBlock& whole,
                           const ConstBlock& message, const Block& to, SimdPath simd) const;
  /// Shard `shard` of `to` += what add()'s result does not say of the sum of the messages.
  void accumulate_residual_of_sum(Stream& stream, std::int64_t shard, const SummandRow& messages,
                                  const ConstBlock& result, const Block& to, SimdPath simd) const;
  /// Shard `shard` of `whole` <- result.
  void decode(Stream& stream, std::int64_t shard, const ConstBlock& result, const Block& whole,
              SimdPath simd) const;

 private:
  /// A part of a block that is cut into shards.
  struct Cut {
    std::int64_t first = 0;
    std::int64_t numel = 0;
    /// Elements of a full shard.
    std::int64_t shard_numel = 0;

    /// The elements of a shard, counted from the beginning of the block.
    [[nodiscard]] PartRange shard(std::int64_t index) const;
    [[nodiscard]] std::int64_t num_filled() const;
  };

  /// to <- the sum of the plain elements of the messages, in their order.
  void add_plain(Stream& stream, std::int64_t shard, const SummandRow& messages, const Block& to,
                 SimdPath simd) const;
  static Cut cut_of(std::int64_t first, std::int64_t numel, int num_shards);
  [[nodiscard]] std::int64_t plain_bytes() const { return plain_.shard_numel * size_of(dtype_); }
  [[nodiscard]] static std::int64_t numel_of(const Cut& cut, std::int64_t shard) {
    const PartRange range = cut.shard(shard);
    return range.last - range.first;
  }
  /// The elements of a shard.
  template <class AnyBlock>
  [[nodiscard]] AnyBlock shard_of(const Cut& cut, std::int64_t shard, const AnyBlock& whole) const;
  /// The plain elements at the beginning of a message.
  template <class AnyBlock>
  [[nodiscard]] AnyBlock plain_part(const AnyBlock& message, std::int64_t shard) const;
  /// The encoded elements of a message, behind the plain ones.
  template <class AnyBlock>
  [[nodiscard]] AnyBlock coded_part(const AnyBlock& message, std::int64_t shard) const;
  [[nodiscard]] SummandRow coded_row(const SummandRow& messages, std::int64_t shard) const;
  /// Work on the encoded elements of a shard, without values and places.
  [[nodiscard]] SummandWork work_on(std::int64_t shard) const;

  const Codec* codec_;
  DType dtype_;
  int num_ranks_;
  Cut coded_;
  Cut plain_;
};

}  // namespace gossamer
