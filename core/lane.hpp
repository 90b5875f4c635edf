#pragma once
// The exchange of one bucket between two of its updates, in whatever way a round asks for: with a
// peer, in a group, with several neighbours, or in two levels. It sends straight from the
// parameters and receives into inboxes that it owns.
//
// Protocol: start(), wait(), take() the arrived inboxes for one update, start() again. Between
// start() and the end of wait() nobody may write the parameters. Not thread safe.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/algorithm.hpp"
#include "core/block_checksum.hpp"
#include "core/peers.hpp"

namespace gossamer {

class Lane {
 public:
  /// `stream`: whose work writes the parameters and reads the inboxes. Outlives this.
  explicit Lane(Stream& stream) : stream_(&stream) {}

  /// Starts this rank's part of round k for a bucket, when the stream's work so far is done.
  /// Returns the bytes sent.
  double start(Peers& groups, const Bucket& bucket, std::int64_t k, SimdPath simd);
  /// The stream waits for what start() has started, and so does the caller if the stream's work is
  /// done at once; nothing if it is over. Throws CommError, and std::logic_error when the
  /// parameters were written meanwhile (debug builds).
  void wait(const Bucket& bucket);
  /// What has arrived, once; later calls give nothing to mix in. Valid until the next start().
  Arrived take();
  /// What has arrived is not to be mixed in.
  void forget() { has_arrived_ = false; }

 private:
  /// Makes sure that there are `count` inboxes.
  void reserve(const Bucket& bucket, std::size_t count);
  [[nodiscard]] OpContext context_of(const Bucket& bucket, std::int64_t k) const;
  /// Exchanges `send` with the peers of a round into the inboxes from `first` on.
  Request exchange(Peers& groups, const RankRound& round, ConstBlock send, std::size_t first,
                   OpContext context);
  Request start_two_levels(Peers& groups, const RankRound& round, const Bucket& bucket,
                           std::int64_t k, SimdPath simd);

  Stream* stream_;
  std::vector<Buffer> buffers_;
  Request request_;
  double keep_ = 1.0;
  std::vector<Inbox> arriving_;
  bool has_arrived_ = false;
  double update_scale_ = 1.0;
  std::shared_ptr<BlockChecksum> checksum_ = std::make_shared<BlockChecksum>();
};

}  // namespace gossamer
