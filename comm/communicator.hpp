#pragma once
// The interface of every communication backend: a group of ranks 0..size-1 that exchange blocks.
//
// Protocol: the members of a communicator submit the same operations in the same order. Two members
// submit their exchanges with each other in the same order. Any number of operations may be in
// flight, and they may end in any order. The caller leaves the blocks of an operation alone until
// the operation is over; a block that is only sent may be read. The operation keeps its `owner`
// alive until then.
//
// An operation may have to wait for earlier ones of the same communicator. An exchange, for
// example, waits until the messages of the exchanges before it have left. Members that go through
// the same rounds in the same order never wait for each other in a circle. Other orders can hang.
// An example with three ranks: rank 0 exchanges with 1, then with 2. Rank 1 exchanges with 2, then
// with 0. Rank 2 exchanges with 0, then with 1. All three wait for ever.
//
// Chains: an operation submitted with `after` starts when that other operation is over. Later
// operations of the same communicator may have to wait for it as well. So two chains that must not
// wait for each other's last links need different communicators for these links.
//
// Tagged messages, send() and receive(), are apart from this order: a tagged message waits for no
// other operation, and no other operation waits for a tagged message. So two ranks may send tagged
// messages although neither knows when the other one looks for them. The timeout counts only the
// time in which a thread waits for the tagged message's request.
//
// Work on the blocks before and between operations goes to stream(). An operation waits for such
// work through an event (OpContext::ready, or the event that prepare() returns).
//
// After an error a rank leaves while its operations may still run on the worker for a while.
// Therefore prepare() and finish() own everything they use, also the stream, and let the stream
// keep the memory that they give to it (Stream::keep()).
//
// Parts: make_parts() makes communicators for groups of members, which belong to this communicator
// and end with it. Libraries have few handles (Open MPI about 30,000), and MPI frees one only
// together with all members, which models that come and go cannot promise. So every
// caller that asks for the same group and use gets the same part, and the operations of all these
// callers are in one order.
//
// Reductions add in an order that depends only on the group, its hosts and the size, so runs repeat
// exactly.
//
// Thread safety: one thread uses a communicator and all communicators split from it.
// Errors: CommError. After one the communicator is unusable and the rank is expected to leave,
// except after a PeerLost, where Elastic::reconfigure() follows.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/buffer.hpp"
#include "base/error.hpp"
#include "base/stream.hpp"
#include "base/types.hpp"
#include "comm/counter.hpp"
#include "comm/op_trace.hpp"
#include "comm/request.hpp"

namespace gossamer {

/// One owner that keeps two others alive.
inline std::shared_ptr<void> both(std::shared_ptr<void> first, std::shared_ptr<void> second) {
  using Pair = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  return std::make_shared<Pair>(std::move(first), std::move(second));
}

/// The settings of an operation beside its blocks.
struct OpContext {
  OpLabel label = {};
  /// Kept alive until the operation is over; may be empty.
  std::shared_ptr<void> owner = {};
  /// An earlier operation of this rank, which must be over first; null: none. If that operation has
  /// failed, this one fails with the same error.
  std::shared_ptr<RequestState> after = {};
  /// The operation starts after this event; null: at once.
  EventPtr ready = {};
  /// Called on the progress worker when `after` and `ready` are done. May give work on the
  /// operation's blocks to a stream, and returns the event behind that work. The operation starts
  /// after the event.
  std::function<EventPtr()> prepare = {};
  /// Called on the progress worker when everything has arrived and been sent. The operation is over
  /// after the event that it returns. For backends on top of others.
  std::function<EventPtr()> finish = {};
  /// Records the operation on a timeline. Operations of NCCL run outside of the progress worker,
  /// and are not recorded.
  OpTrace trace = {};
};

/// A message to receive: the member that sends it, and the block that takes it.
struct Incoming {
  int peer = 0;
  Block block = {};
};

/// The memory that members of a communicator share with the members on the same host, and counters
/// in it by which they signal one another.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  /// Collective. Gives every member `bytes` > 0 bytes of zeros, which members on the same host can
  /// read. Returns the parts of all members; a part is empty where this member cannot reach it.
  /// The members fall into groups: all members of a group reach one another, and no other member. A
  /// part stays while one holds it.
  virtual std::vector<Buffer> allocate(std::int64_t bytes) = 0;
  /// The members on this member's host, itself included.
  [[nodiscard]] virtual std::int64_t num_on_host() const = 0;
  /// Raises this member's counter, which lies in memory of allocate(), for all that wait for it.
  virtual void signal(Counter& counter, std::uint64_t value) {
    counter.store(value, std::memory_order_release);
  }
  /// Waits until their owners have raised the counters, which lie in memory of allocate(). The
  /// context's owner keeps this memory alive.
  virtual Request wait_signals(std::vector<Awaited> awaited, OpContext context) = 0;
};

/// A world of a run whose members change.
struct Membership {
  World world = {};
  /// The largest number of steps that a member had made when this world began.
  std::int64_t step = 0;
  /// Counts the worlds of a run from 0.
  std::int64_t epoch = 0;
  /// The members by their ranks. A run gives each number once.
  std::vector<std::int64_t> members = {};
};

/// The membership of a run whose ranks may be lost, and which others may join.
class Elastic {
 public:
  virtual ~Elastic() = default;
  /// The present world.
  [[nodiscard]] virtual Membership membership() const = 0;
  /// Whether processes that ask this rank to join are let in from now on, which disturbs the
  /// operations of all ranks. Otherwise they wait. At first no process is let in.
  virtual void admit(bool admits) = 0;
  /// Collective of the ranks that are left. Ends the world of the communicator, and begins one
  /// without the ranks that are lost. Communicators split from it, and its parts, belong to the old
  /// world: their operations fail. `step`: the steps that this rank has made. Throws CommError when
  /// this rank has to leave.
  virtual Membership reconfigure(std::int64_t step) = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// The world rank of each member.
  [[nodiscard]] virtual const std::vector<int>& world_ranks() const = 0;
  /// The stream for work on blocks between operations. Never null.
  [[nodiscard]] virtual const std::shared_ptr<Stream>& stream() = 0;
  /// Whether blocks may lie in the memory of GPUs.
  [[nodiscard]] virtual bool takes_device_memory() const { return false; }

  /// Sends `send` to `peer` and receives as many elements into `receive`; the peer does the same.
  virtual Request exchange(int peer, ConstBlock send, Block receive, OpContext context) = 0;
  /// Sends `send` to each of `peers` and receives one block from each of `incoming`, all at the
  /// same time. Every peer must receive the message by an operation of its own, in the same order.
  virtual Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                          std::vector<Incoming> incoming, OpContext context) = 0;
  /// Sends `message` to `peer`, which takes it by receive(). The tagged messages from one member to
  /// another that have the same `tag`, 0 to kNumTags - 1, arrive in the order in which they were
  /// sent.
  virtual Request send(int peer, int tag, ConstBlock message, OpContext context) = 0;
  /// Receives the next tagged message from `peer` with this tag. It has as many elements as
  /// `message`.
  virtual Request receive(int peer, int tag, Block message, OpContext context) = 0;
  static constexpr int kNumTags = 8;
  /// receive = sum of all members' `send`, self included; float32, float64 or int64.
  virtual Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) = 0;
  /// Adds the blocks of all other members to the block of `root`. Their blocks stay as they are.
  /// Host memory; float32, float64 or int64.
  virtual Request reduce_sum(Block block, int root, OpContext context) = 0;
  /// Copies the block of `root` into the blocks of all members.
  virtual Request broadcast(Block block, int root, OpContext context) = 0;
  /// Collective. Makes now what operations need that a communicator makes with its first one.
  virtual void connect() {}
  /// Gets memory for operations that carry `num_blocks` such blocks at the same time, those to send
  /// and those to receive together. While what this returns lives, such operations allocate none:
  /// pinned memory takes milliseconds. Null where blocks travel as they are.
  virtual std::shared_ptr<void> reserve(std::int64_t /*numel*/, DType /*dtype*/,
                                        std::int64_t /*num_blocks*/) {
    return nullptr;
  }
  /// Memory that members on the same host share; null where the backend has none. All members have
  /// it, or none. Lives as long as the communicator.
  virtual SharedMemory* shared_memory() { return nullptr; }
  /// Returns the texts of all members, in rank order. Blocks until all have come.
  virtual std::vector<std::string> all_gather(std::string text) = 0;
  /// Throws if communication is known to have ended: an operation has failed, or another rank has.
  /// Never blocks. Any thread may call it.
  virtual void check() = 0;
  /// Seconds of processor time that the progress worker of this rank has used so far, for all
  /// communicators of the rank. Where no core is free, the computation lacks this time.
  [[nodiscard]] virtual double worker_cpu_s() = 0;
  /// Blocks until all members have come here.
  virtual void barrier() = 0;
  /// A communicator of the members that give the same `color`, in rank order; nullptr for a
  /// negative color. All members call it. What it holds in a library may stay until the launch
  /// ends, so what is needed again and again is asked for by make_parts().
  virtual std::unique_ptr<Communicator> split(int color) = 0;
  /// Collective. Makes a part for each of `groups`, unless there is one for the same use. All
  /// members give the same groups: members in ascending order, none of them in two groups.
  void make_parts(std::string_view use, const std::vector<std::vector<int>>& groups);
  /// The part that make_parts() has made; null if this member is not in it, or if there is none.
  [[nodiscard]] Communicator* find_part(std::string_view use, const std::vector<int>& group) const;
  /// Collective. The part of all members.
  Communicator& duplicate(std::string_view use);
  /// The number of parts that this member is in.
  [[nodiscard]] std::int64_t num_parts() const;
  /// The membership of ranks that may be lost while the others go on; operations then fail with
  /// PeerLost. Null where the ranks begin and end together. Lives as long as the communicator.
  virtual Elastic* elastic() { return nullptr; }
  [[nodiscard]] bool is_elastic() { return elastic() != nullptr; }
  /// Collective. Releases, in good order, what this communicator and those split from it hold in a
  /// library such as NCCL. No other call on them may follow. Only for a rank that leaves without an
  /// error. After an error a rank leaves without this call, and the destructor gives everything up
  /// without communicating. Does nothing where the launch ends the communicators. Throws CommError.
  virtual void close() {}

 protected:
  /// The parts belong to a world that has ended.
  void drop_parts() { parts_.clear(); }

 private:
  /// By use and members; null for groups without this member.
  std::map<std::string, std::map<std::vector<int>, std::unique_ptr<Communicator>>, std::less<>>
      parts_;
};

/// This member's rank in the world.
inline int own_world_rank(const Communicator& communicator) {
  return communicator.world_ranks()[static_cast<std::size_t>(communicator.rank())];
}

}  // namespace gossamer
