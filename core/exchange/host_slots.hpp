#pragma once
// Blocks that the ranks of a host read in each other's memory, so that no copy is made. Each
// lane of a rank has two slots in memory that the rank shares. The pass that updates a block also
// writes it into a slot, and the passes of the peers mix it in from there.
//
// The slots take turns from round to round. Every rank counts the rounds that it has started
// (publish()), in memory that the others see. Two rules:
//
//   1. A rank reads a peer's slot of round r only after that peer has started round r.
//   2. A rank writes that slot again, for round r + 2, only after all of its readers have started
//      round r + 1.
//
// Example: rank 1 reads the slots of ranks 0 and 2. Rank 1 mixes in round 5 when both have started
// round 5. Rank 0 writes its slot of round 5 again, for round 7, when rank 1 has started round 6.
//
// A rank that has started round r + 1 never reads a slot of round r again. So one wait before the
// update serves both rules (arrival()), and a rank that forgets arrived blocks delays no other
// rank.
//
// Every rank counts all rounds, also the rounds in which it sends nothing.
//
// Protocol: for each round publish(), then arrival(). heard() says where a block will
// lie; it may be read after the wait for arrival(). The slot of next() may be written after that
// wait, until the next publish(). Not thread safe. Errors: CommError from requests.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/buffer.hpp"
#include "comm/communicator.hpp"
#include "core/exchange/lane.hpp"
#include "topology/rank_round.hpp"

namespace gossamer {

/// How the ranks of a host read each other's blocks.
struct HostSharing {
  /// Ranks that read the memory of another rank.
  std::int64_t num_sharing = 0;
  /// Ranks that cannot reach all ranks of their host, so that messages take the place of slots.
  std::int64_t num_refused = 0;
};

/// The memory of the slots of all lanes, one area for each rank. The system limits the number of
/// mappings of a process, and there may be many thousands of lanes. First every lane says how much
/// it needs (reserve()), then all ranks make the memory (share()).
class HostMemory {
 public:
  /// `world` must outlive this object.
  explicit HostMemory(Communicator& world)
      : world_(world), parts_(static_cast<std::size_t>(world.size())) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  [[nodiscard]] Communicator& world() const { return world_; }
  [[nodiscard]] bool is_shared() const { return is_shared_; }
  /// Returns where the next `bytes` of every rank's area begin. All ranks reserve alike. Only
  /// before share().
  std::int64_t reserve(std::int64_t bytes);
  /// Collective, once. Makes the areas, which hold zeros.
  void share();
  /// The beginning of a rank's area; null where it is not reached. A rank that reaches no other one
  /// does not reach itself either.
  [[nodiscard]] std::byte* of(int rank) const {
    return static_cast<std::byte*>(parts_[static_cast<std::size_t>(rank)].block().data);
  }
  [[nodiscard]] const HostSharing& sharing() const { return sharing_; }

 private:
  Communicator& world_;
  std::int64_t bytes_ = 0;
  bool is_shared_ = false;
  std::vector<Buffer> parts_;
  HostSharing sharing_;
};

class HostSlots {
 public:
  /// Makes the slots for the blocks of a lane. All ranks make the slots of the same lanes in the
  /// same order.
  HostSlots(std::shared_ptr<HostMemory> memory, const LaneSpec& spec);

  /// Whether this rank shares memory with another one; else its lane sends messages. Throws
  /// std::logic_error before HostMemory::share().
  [[nodiscard]] bool are_shared() const;
  /// Whether messages between this rank and another rank go through slots; both ranks return the
  /// same value.
  [[nodiscard]] bool reaches(int rank) const { return memory_->of(rank) != nullptr; }
  /// Whether other ranks read this rank's block in a round.
  [[nodiscard]] bool are_read(const RankRound& round) const { return !readers_of(round).empty(); }
  /// All ranks whose blocks a round adds up for this rank, itself included, if they are few and
  /// share a host; else none. A rank then mixes in the sum of their blocks in the order of ranks.
  [[nodiscard]] std::vector<int> summed(const RankRound& round) const;
  /// This rank's part in a round without the messages that go through slots.
  [[nodiscard]] RankRound unreached(const RankRound& round) const;
  /// The slot of the next round, which updates write.
  [[nodiscard]] Block next() const { return slot_of(world_.rank(), num_started_); }
  /// Starts a round. Where others read this rank's block, the slot must hold it (next()).
  void publish(const RankRound& round);
  /// The block of another rank in the round under way. For ranks that are reached.
  [[nodiscard]] ConstBlock heard(int rank) const { return slot_of(rank, num_started_ - 1); }
  /// Over when the blocks that this rank hears have come, and its next slot may be written. Empty
  /// if nothing is missing, unless a timeline records. Only the first call of a round waits. Throws
  /// CommError if another rank is known to have failed.
  [[nodiscard]] Request arrival(OpContext context);

 private:
  [[nodiscard]] Block slot_of(int rank, std::uint64_t round) const;
  [[nodiscard]] Counter& counter_of(int rank) const;
  /// The ranks that read this rank's block in a round, and those whose blocks it reads.
  [[nodiscard]] std::vector<int> readers_of(const RankRound& round) const;
  [[nodiscard]] std::vector<int> sources_of(const RankRound& round) const;
  [[nodiscard]] Request await_start_of(const std::vector<int>& ranks, OpContext context);
  [[nodiscard]] std::vector<int> reached(const RankRound& round,
                                         const std::vector<int>& ranks) const;

  std::shared_ptr<HostMemory> memory_;
  Communicator& world_;
  std::int64_t numel_;
  DType dtype_;
  /// Bytes of one slot.
  std::int64_t slot_bytes_;
  /// Where this lane's part of each area begins: the counter, then the slots.
  std::int64_t first_;
  std::uint64_t num_started_ = 0;
  /// The ranks whose start of the present round this rank waits for: the ranks from which it
  /// receives, and the ranks that have read its slot in the round before.
  std::vector<int> sources_;
  std::vector<int> former_readers_;
  /// The ranks that read this rank's slot in the round under way.
  std::vector<int> readers_;
};

}  // namespace gossamer
