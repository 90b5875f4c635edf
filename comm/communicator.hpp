#pragma once
// The interface of every communication backend: a group of ranks 0..size-1 that exchange blocks.
//
// Protocol: the members of a communicator submit the same operations in the same order. Two members
// submit their exchanges with each other in the same order. Any number of operations may be in
// flight, and they may end in any order. The caller neither reads nor writes the blocks of an
// operation until the operation is over, except that it may read a block that is only sent. The
// operation keeps its `owner` alive until the operation is over.
//
// An operation may have to wait for earlier ones of the same communicator. An exchange, for
// example, waits until the messages of the exchanges before it have left. Members that go through
// the same rounds in the same order never wait for each other in a circle. Other orders can hang.
// Example with three ranks, which all wait for ever:
//
//     rank 0 exchanges with 1, then with 2
//     rank 1 exchanges with 2, then with 0
//     rank 2 exchanges with 0, then with 1
//
// Chains: an operation with OpContext::after starts when that earlier operation is over. Later
// operations of the same communicator may have to wait for the chained operation as well. So two
// chains whose last operations must not wait for each other need two communicators for these
// operations.
//
// Tagged messages, send() and receive(), have no place in this order: a tagged message waits for no
// other operation, and no other operation waits for a tagged message. So two ranks may send tagged
// messages although neither knows when the other rank looks for them. The timeout counts only the
// time in which a thread waits for the tagged message's request.
//
// Streams: work on the blocks before and between operations goes to stream(). An operation waits
// for such work through an event (OpContext::ready, or the event that OpContext::prepare returns).
//
// Ownership: after an error a rank leaves while its operations may still run on the worker for a
// while. Therefore OpContext::prepare and OpContext::finish own everything that they use, also the
// stream. They let the stream keep the memory on which it works for them (Stream::keep()).
//
// Subgroups: make_subgroups() makes communicators for groups of members, which belong to this
// communicator and end with it. Libraries have few handles (Open MPI about 30,000). MPI frees a
// handle only together with all members, which models that come and go cannot promise. So every
// caller that asks for the same group and use gets the same subgroup, and the operations of all
// these callers are in one order.
//
// Reductions add in an order that depends only on the group, its hosts and the size of the block,
// so runs repeat exactly.
//
// Thread safety: one thread uses a communicator and all communicators split from it. Errors:
// CommError. After a CommError the communicator is unusable, and the rank is expected to leave.
// After a PeerLost the rank may call Elastic::reconfigure() instead.

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

/// Returns one owner that keeps `first` and `second` alive.
inline std::shared_ptr<void> both(std::shared_ptr<void> first, std::shared_ptr<void> second) {
  using Pair = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  return std::make_shared<Pair>(std::move(first), std::move(second));
}

/// The settings of an operation beside its blocks.
struct OpContext {
  OpLabel label = {};
  /// An object that the operation keeps alive until it is over; may be empty.
  std::shared_ptr<void> owner = {};
  /// An earlier operation of this rank, which must be over first; null: none. If the earlier
  /// operation has failed, the new operation fails with the same error.
  std::shared_ptr<RequestState> after = {};
  /// The operation starts after this event; null: at once.
  EventPtr ready = {};
  /// The progress worker calls it when `after` and `ready` are done. It may give work on the
  /// operation's blocks to a stream, and returns the event behind that work. The operation starts
  /// after the event.
  std::function<EventPtr()> prepare = {};
  /// The progress worker calls it when all messages of the operation have arrived and been sent.
  /// The operation is over after the event that `finish` returns. Communicators on top of other
  /// communicators use it.
  std::function<EventPtr()> finish = {};
  /// Records the operation on a timeline. Operations of NCCL run outside of the progress worker,
  /// and the timeline lacks them.
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
  /// read. Returns the parts of all members; a part is empty where this member cannot reach it. The
  /// members fall into groups: all members of a group reach one another, and no other member. A
  /// part lives as long as a member holds its Buffer.
  virtual std::vector<Buffer> allocate(std::int64_t bytes) = 0;
  /// The members on this member's host, itself included.
  [[nodiscard]] virtual std::int64_t num_on_host() const = 0;
  /// Raises this member's counter, which lies in memory of allocate(), to `value`, for all members
  /// that wait for it.
  virtual void signal(Counter& counter, std::uint64_t value) {
    counter.store(value, std::memory_order_release);
  }
  /// Waits until the owners of the counters have raised them. The counters lie in memory of
  /// allocate(), which the context's owner keeps alive.
  virtual Request wait_signals(std::vector<Awaited> awaited, OpContext context) = 0;
};

/// A world of a run whose members change.
struct Membership {
  World world = {};
  /// The largest number of steps that a member had made when this world began.
  std::int64_t step = 0;
  /// The generation: the number of this world in the run, counted from 0.
  std::int64_t epoch = 0;
  /// The number of each member, by rank. A run gives each number to one process only.
  std::vector<std::int64_t> members = {};
  /// False: ranks have joined in this world, and do not count in the majority that goes on from it.
  /// When the ranks have found that the new ones fit, all of them call reconfigure() again. In the
  /// next world all count.
  bool all_vote = true;
};

/// The membership of a run that may lose ranks, and that other processes may join.
class Elastic {
 public:
  virtual ~Elastic() = default;
  /// The present world.
  [[nodiscard]] virtual Membership membership() const = 0;
  /// True: from now on this rank lets in processes that ask it to join, which disturbs the
  /// operations of all ranks. False, as at first: such processes wait.
  virtual void admit(bool admits) = 0;
  /// Collective of the remaining ranks. Ends the world of the communicator, and begins a world
  /// without the lost ranks, and with processes that were let in (Membership::all_vote).
  /// Communicators split from it, and its subgroups, belong to the old world,
  /// and their operations fail. `step` is the number of steps that this rank has made. Throws
  /// CommError when this rank has to leave.
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

  /// Sends `send` to `peer` and receives as many elements from `peer` into `receive`; the peer does
  /// the same.
  virtual Request exchange(int peer, ConstBlock send, Block receive, OpContext context) = 0;
  /// Sends `send` to each of `peers` and receives one block from each of `incoming`, all at the
  /// same time. Every peer must receive the message by an operation of its own, in the same order.
  virtual Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                          std::vector<Incoming> incoming, OpContext context) = 0;
  /// Sends `message` to `peer`, which takes it by receive(). The tagged messages from one member to
  /// another that have the same `tag`, 0 to kNumTags - 1, arrive in the order in which they were
  /// sent.
  virtual Request send(int peer, int tag, ConstBlock message, OpContext context) = 0;
  /// Receives the next tagged message from `peer` with this tag. The sent message must have as many
  /// elements as `message`.
  virtual Request receive(int peer, int tag, Block message, OpContext context) = 0;
  static constexpr int kNumTags = 8;
  /// Sums the blocks `send` of all members, this one included, into `receive`. The elements are
  /// float32, float64 or int64.
  virtual Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) = 0;
  /// Adds the blocks of all other members to the block of `root`. The blocks of the other members
  /// stay as they are. The blocks lie in host memory, and their elements are float32, float64 or
  /// int64.
  virtual Request reduce_sum(Block block, int root, OpContext context) = 0;
  /// Copies the block of `root` into the blocks of all members.
  virtual Request broadcast(Block block, int root, OpContext context) = 0;
  /// Collective. Makes the connections now that otherwise the first operation would make.
  virtual void connect() {}
  /// Gets memory for operations that carry `num_blocks` blocks of `numel` elements at the same
  /// time, sent and received blocks together. While the returned object lives, such operations
  /// allocate no memory; allocating pinned memory would take milliseconds. Null where blocks travel
  /// without a copy.
  virtual std::shared_ptr<void> reserve(std::int64_t /*numel*/, DType /*dtype*/,
                                        std::int64_t /*num_blocks*/) {
    return nullptr;
  }
  /// The memory that members on the same host share; null where the backend has no such memory. It
  /// is null on all members, or on none. It lives as long as the communicator.
  virtual SharedMemory* shared_memory() { return nullptr; }
  /// Returns the texts of all members, in rank order. Blocks until all members have called it.
  virtual std::vector<std::string> all_gather(std::string text) = 0;
  /// Throws CommError if communication is known to have ended, because an operation or another rank
  /// has failed. Never blocks. Any thread may call it.
  virtual void check() = 0;
  /// Seconds of processor time that the progress worker of this rank has used so far, for all
  /// communicators of the rank. Where no core is free, the computation loses this time.
  [[nodiscard]] virtual double worker_cpu_s() = 0;
  /// Blocks until all members have called it.
  virtual void barrier() = 0;
  /// Collective. Makes a communicator of the members that give the same `color`, in rank order;
  /// nullptr for a negative color. Its handles in a library may stay until the launch ends. So a
  /// caller that needs a group again and again asks make_subgroups() for it.
  virtual std::unique_ptr<Communicator> split(int color) = 0;
  /// Collective. Makes a subgroup for each of `groups`, unless there is one of the same group for
  /// the same use. All members give the same groups. A group lists its members in ascending order,
  /// and no member is in two groups.
  void make_subgroups(std::string_view use, const std::vector<std::vector<int>>& groups);
  /// The subgroup that make_subgroups() has made for `group` and `use`. Null if there is none, or
  /// if this member is not in it.
  [[nodiscard]] Communicator* find_subgroup(std::string_view use,
                                            const std::vector<int>& group) const;
  /// Collective. Returns the subgroup of all members for `use`.
  Communicator& duplicate(std::string_view use);
  /// The number of subgroups that this member is in.
  [[nodiscard]] std::int64_t num_subgroups() const;
  /// The membership of a run in which ranks may be lost while the other ranks go on; operations
  /// then fail with PeerLost. Null where all ranks begin and end together. It lives as long as the
  /// communicator.
  virtual Elastic* elastic() { return nullptr; }
  [[nodiscard]] bool is_elastic() { return elastic() != nullptr; }
  /// Collective. Releases the handles that this communicator and the communicators split from it
  /// hold in a library such as NCCL. No other call on them may follow. A rank calls close() only if
  /// it leaves without an error. After an error the destructor gives the handles up without
  /// communicating. Does nothing where the launch ends the communicators. Throws CommError.
  virtual void close() {}

 protected:
  /// Destroys all subgroups, because they belong to a world that has ended.
  void drop_subgroups() { subgroups_.clear(); }

 private:
  /// The subgroups by use and members; null for groups without this member.
  std::map<std::string, std::map<std::vector<int>, std::unique_ptr<Communicator>>, std::less<>>
      subgroups_;
};

/// This member's rank in the world.
inline int own_world_rank(const Communicator& communicator) {
  return communicator.world_ranks()[static_cast<std::size_t>(communicator.rank())];
}

}  // namespace gossamer
