#pragma once
// What every backend offers: a group of ranks 0..size-1 that exchange blocks.
//
// Protocol: the members of a communicator submit the same operations in the same order; two members
// submit their exchanges with each other in the same order. Any number may be in flight, and they
// may end in any order. Blocks named in an operation stay untouched by the caller until it is over
// (a block that is only sent may be read). `owner` is kept alive until then.
//
// Operations can be chained: one that is submitted with `after` starts when that one is over. What
// the same communicator is given later does not overtake it, so chains keep the order of
// submission; chains that must not wait for each other's last links need communicators of their
// own for these.
//
// Work on memory may come before and between operations: it goes to stream(), and an operation that
// names the event after it (OpContext::ready, or what prepare() returns) starts when it is done.
//
// A rank that leaves after an error leaves operations behind, and the worker goes on with them for
// a while: what prepare() and finish() use they own, the stream too, and what they give to a stream
// they have it keep (Stream::keep()).
//
// Reductions add in an order that depends only on the group and the size, so that runs repeat.
//
// Thread safety: one thread uses a communicator and all communicators split from it.
// Errors: CommError. After one the communicator is unusable and the rank is expected to leave.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/stream.hpp"
#include "base/types.hpp"
#include "comm/request.hpp"

namespace gossamer {

/// One owner that keeps two others alive.
inline std::shared_ptr<void> both(std::shared_ptr<void> first, std::shared_ptr<void> second) {
  using Pair = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  return std::make_shared<Pair>(std::move(first), std::move(second));
}

/// What belongs to an operation beside its blocks.
struct OpContext {
  OpLabel label = {};
  /// Kept alive until the operation is over; may be empty.
  std::shared_ptr<void> owner = {};
  /// Of this rank, submitted before; null: the operation starts at once.
  std::shared_ptr<RequestState> after = {};
  /// The operation starts when it is done.
  EventPtr ready = {};
  /// Called on the progress worker when `after` and `ready` are done; it may give work that reads
  /// and writes the operation's blocks to a stream. The operation starts when what it returns is
  /// done.
  std::function<EventPtr()> prepare = {};
  /// Called on the progress worker when all has arrived and been sent; the operation is over when
  /// what it returns is done. For backends on top of others.
  std::function<EventPtr()> finish = {};
};

/// Where a message goes to, and who sends it.
struct Incoming {
  int peer = 0;
  Block block = {};
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// The rank in the world of each member.
  [[nodiscard]] virtual const std::vector<int>& world_ranks() const = 0;
  /// Where work on what has arrived goes, between operations. Never null.
  [[nodiscard]] virtual const std::shared_ptr<Stream>& stream() = 0;
  /// Operations may name the memory of GPUs.
  [[nodiscard]] virtual bool takes_device_memory() const { return false; }

  /// Sends `send` to `peer` and receives as many elements into `receive`; the peer does the same.
  virtual Request exchange(int peer, ConstBlock send, Block receive, OpContext context) = 0;
  /// Sends `send` to each of `peers` and receives one block from each of `incoming`; all messages
  /// are under way together. Whoever is sent to must receive, in the same order of operations.
  virtual Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                          std::vector<Incoming> incoming, OpContext context) = 0;
  /// receive = sum of all members' `send`, self included; float32, float64 or int64.
  virtual Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) = 0;
  /// Copies root's block into everybody's.
  virtual Request broadcast(Block block, int root, OpContext context) = 0;
  /// Blocks until every member's text is here, in rank order.
  virtual std::vector<std::string> all_gather(std::string text) = 0;
  /// Throws what has ended communication, if that is known: an operation that has failed, another
  /// rank that has. Never blocks. Any thread may call it.
  virtual void check() = 0;
  /// Blocks until all members have come here.
  virtual void barrier() = 0;
  /// A communicator of the members that give the same `color`, in rank order; nullptr for a
  /// negative color. All members call it.
  virtual std::unique_ptr<Communicator> split(int color) = 0;
};

/// This member's rank in the world.
inline int own_world_rank(const Communicator& communicator) {
  return communicator.world_ranks()[static_cast<std::size_t>(communicator.rank())];
}

}  // namespace gossamer
