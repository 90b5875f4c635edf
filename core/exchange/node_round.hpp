#pragma once
// A round of two levels, in three stages:
//
// 1. The ranks of a node sum their blocks.
// 2. The first rank of the node exchanges the sum with other nodes, and mixes.
// 3. The first rank sends the result to the other ranks of its node.
//
// Stages 2 and 3 run on the progress worker. Errors: CommError from requests. Not thread safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/buffer.hpp"
#include "core/exchange/round_messages.hpp"

namespace gossamer {

/// Memory for encoded blocks: this rank's own, and the blocks that it hears.
struct EncodedBlocks {
  const MixingCodec& codec;
  Buffer own = {};
  std::vector<Buffer> inboxes = {};

  /// Allocates `own`, and inboxes until there are `count` of them.
  void reserve(Stream& stream, std::int64_t numel, std::size_t count);
  /// All memory, for operations that use it.
  [[nodiscard]] std::vector<Buffer> all() const;
};

class NodeRound {
 public:
  /// `encoded`: the first ranks of nodes encode the sums that they exchange; null: they send plain
  /// sums. Both must outlive this object.
  explicit NodeRound(RoundMessages& messages, EncodedBlocks* encoded = nullptr)
      : messages_(messages), encoded_(encoded) {}

  /// Starts this rank's part of round k with the block `sent`, and says what will arrive.
  Request start(const RankRound& round, std::int64_t k, const Buffer& sent, Arriving& arriving);
  /// Whether nodes exchange encoded blocks in a round.
  [[nodiscard]] bool encodes(const RankRound& round) const {
    return encoded_ != nullptr && round.kind != RankRound::Kind::kGroup;
  }

 private:
  [[nodiscard]] OpContext context(std::int64_t k, const Buffer& sent) const;
  /// The exchange of a node's sum between the first ranks of nodes, which starts after `sum`.
  Request start_between(const RankRound& round, std::int64_t k, const Buffer& sent,
                        std::shared_ptr<RequestState> sum);
  /// The work with which the first rank mixes the sums of other nodes into its own node's.
  [[nodiscard]] std::function<EventPtr()> mixing(const RankRound& round, const Block& inbox,
                                                 std::shared_ptr<void> owner);

  RoundMessages& messages_;
  EncodedBlocks* encoded_;
};

}  // namespace gossamer
