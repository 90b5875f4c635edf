#pragma once
// The messages of one lane in the rounds of its Peers: exchanges with a peer, in a group, or with
// several neighbours. Sends straight from a block and receives into inboxes. Errors: CommError from
// requests. Not thread safe.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.hpp"
#include "comm/communicator.hpp"
#include "core/exchange/lane.hpp"
#include "core/exchange/lane_setup.hpp"
#include "core/exchange/peers.hpp"
#include "topology/rank_round.hpp"

namespace gossamer {

/// A part of a block on its way. The parts of a block arrive in their order.
struct PartUnderWay {
  /// Elements of the block up to the end of the part.
  std::int64_t last = 0;
  Request request = {};
};

/// A request that is over when all parts are.
Request whole(std::vector<PartUnderWay> parts);

/// The Intake of an update when a round has arrived.
struct Arriving {
  double keep = 1.0;
  std::vector<Inbox> inboxes = {};
};

class RoundMessages {
 public:
  /// `setup` and `peers` must outlive this object, as must all that they refer to. `encodes`: the
  /// blocks that go to single ranks are encoded in every round, so that only sums need memory on a
  /// GPU from the beginning.
  RoundMessages(const LaneSetup& setup, Peers& peers, const LaneSpec& spec, bool encodes = false);

  [[nodiscard]] const LaneSetup& setup() const { return setup_; }
  [[nodiscard]] Peers& peers() const { return peers_; }
  [[nodiscard]] const LaneSpec& spec() const { return spec_; }

  /// Inboxes for plain blocks; allocates until there are `count` of them.
  std::span<const Buffer> reserve(std::size_t count);
  [[nodiscard]] OpLabel label(std::int64_t k) const;
  /// The context of an operation of round k that uses `sent`, the inboxes and `used`. The operation
  /// may outlive the lane, so the context keeps this memory alive.
  [[nodiscard]] OpContext context(std::int64_t k, const Buffer& sent,
                                  std::span<const Buffer> used = {}) const;
  /// Exchanges `send` with the peers of a round, and receives into `inboxes`: one for each rank
  /// that is heard, or one for a sum. In a round of two levels the peers are the first ranks of
  /// nodes.
  Request exchange(const RankRound& round, ConstBlock send, std::span<const Buffer> inboxes,
                   OpContext context) const;
  /// Exchanges in a round of pairs or neighbours, for a block of this lane. A large block in
  /// host memory goes in parts, the same ones on every rank.
  std::vector<PartUnderWay> exchange_in_parts(const RankRound& round, ConstBlock send,
                                              std::span<const Buffer> inboxes,
                                              const OpContext& context) const;
  /// Adds the bytes of a round to the metrics.
  void count(const RankRound& round, const BlockBytes& bytes) const;

 private:
  const LaneSetup& setup_;
  Peers& peers_;
  LaneSpec spec_;
  std::vector<Buffer> inboxes_;
  /// Memory that the communicator keeps for the messages (Communicator::reserve()).
  std::shared_ptr<void> reserved_;
};

/// A rank that is idle in a round neither sends nor hears.
inline bool is_idle(const RankRound& round) {
  return round.kind == RankRound::Kind::kIdle && round.node_size == 1;
}

}  // namespace gossamer
