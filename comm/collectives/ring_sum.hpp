#pragma once
// Sums a large block over a group, by messages that go round a ring. Every rank receives from the
// rank before it, and sends to the rank after it.
//
// The ring goes host by host (ring_order()), so only one rank of each host sends to another host.
//
// The block has n shards, one for each rank, and a shard has pieces. In n - 1 passes every shard
// collects its sum. A rank sends its own values of its own shard first. Then it adds its own values
// to each piece that arrives, and sends the piece on. In n - 1 more passes each finished shard goes
// round, and every rank keeps a copy. A shard's sum begins at its own rank and follows the ring. So
// the order of adding depends on the group, its hosts and the size alone, and all ranks have the
// same bits, on every backend.
//
// Two rules keep the wire busy (docs/design/decisions/sums.md has the figures):
//
// - A rank passes a piece on as soon as it arrives, while later ones are on their way. The rank's
//   own shard goes first, so the pieces to pass on queue behind it, and the queue does not run dry.
// - A link carries one stream of messages in each direction. When every rank sends to every other
//   rank at once, the streams share the links unevenly, and all ranks wait for the slowest stream.
//
// A backend brings the RingWire. Thread safety: the progress worker's. Errors: what the wire
// throws.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/types.hpp"
#include "comm/worker/progress_worker.hpp"

namespace gossamer {

/// The messages between neighbours. The messages in one direction have the numbers 0, 1, ... in the
/// order in which they go over the wire, and the receiver asks for them in this order.
class RingWire {
 public:
  RingWire() = default;
  RingWire(const RingWire&) = delete;
  RingWire& operator=(const RingWire&) = delete;
  virtual ~RingWire() = default;

  /// Sends to the rank after this rank.
  virtual void send(std::int64_t i, const ConstBlock& piece) = 0;
  /// Receives from the rank before this rank.
  virtual void receive(std::int64_t i, const Block& piece) = 0;
  virtual bool has_sent(std::int64_t i) = 0;
  /// Throws CommError if the message has another size than its block.
  virtual bool has_received(std::int64_t i) = 0;
  /// Operation::is_woken().
  [[nodiscard]] virtual bool is_woken() const { return false; }
};

struct Ring {
  /// The world ranks, in the order of the ring.
  std::vector<int> members;
  /// The place of this rank on the ring.
  std::int64_t place = 0;
  /// The largest message.
  std::int64_t piece_bytes = 0;
  /// The most pieces that a rank is ready to receive at a time.
  std::int64_t receive_window = 0;
};

/// `order` and `rank`: members of a group, which has these world ranks.
Ring ring_through(std::span<const int> order, std::span<const int> world_ranks, int rank);

/// Sums a block in host memory over a group of two or more ranks.
std::unique_ptr<Operation> make_ring_sum(Ring ring, ConstBlock send, Block receive,
                                         std::unique_ptr<RingWire> wire);

}  // namespace gossamer
