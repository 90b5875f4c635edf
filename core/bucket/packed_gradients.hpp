#pragma once
// The gradients of a bucket, copied into one contiguous block that ranks can sum. Behind the
// gradients, the block has one flag per parameter: 1 if this rank has a gradient, otherwise 0. In a
// sum over ranks, a flag above 0 tells that at least one rank has used the parameter. Not thread
// safe.

#include <cstdint>

#include "base/buffer.hpp"
#include "core/bucket/bucket.hpp"

namespace gossamer {

class PackedGradients {
 public:
  /// Allocates a block for the bucket. `stream` must outlive the object.
  PackedGradients(const Bucket& bucket, Stream& stream);

  /// Number of elements behind the gradients.
  static std::int64_t num_flags(const Bucket& bucket) { return bucket.num_entries(); }

  [[nodiscard]] const Buffer& buffer() const { return block_; }
  /// The gradients of the block, without the flags.
  [[nodiscard]] Buffer gradients(const Bucket& bucket) const;
  /// The flags of the block.
  [[nodiscard]] Buffer flags(const Bucket& bucket) const;
  /// Enqueues the copies. Missing gradients become zeros.
  void pack(const Bucket& bucket);
  /// Replaces the bucket's gradients by the gradients in a sum of such blocks, which must stay
  /// until the update is done. Removes the gradients that no rank has; null data removes all. Waits
  /// for the stream.
  void unpack(Bucket& bucket, ConstBlock sum);
  /// Replaces the gradients by sums in two blocks: the gradients of the bucket's shard, and all
  /// flags.
  void unpack(Bucket& bucket, const ConstBlock& gradients, const ConstBlock& flags);
  /// Shows the visitor the block, entry by entry.
  void visit(StateVisitor& visitor, const Bucket& bucket);

 private:
  Stream* stream_;
  Buffer block_;
  /// Host memory: this rank's flags, and the flags of a sum.
  Buffer own_flags_;
  Buffer sum_flags_;
};

}  // namespace gossamer
