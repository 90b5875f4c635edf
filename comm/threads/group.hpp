#pragma once
// The meeting place of ranks that are threads of one process.
//
// A Meeting is one operation of one group. Each member brings its blocks. When all members have
// come, each member does its own part (copy, sum) straight from the others' memory. When all parts
// are done, the operation is over for all. Nothing is copied twice, and no member holds a lock
// while it copies.
//
// Thread safety: the progress workers of all ranks share everything here.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/buffer.hpp"
#include "base/error.hpp"
#include "base/types.hpp"
#include "comm/worker/attendance.hpp"
#include "comm/worker/doorbell.hpp"

namespace gossamer {

/// Remembers the first rank that failed. From then on no rank of the run starts or ends an
/// operation. Wakes the workers of ranks that wait.
class ThreadHub {
 public:
  /// `survives`: the failure of a rank is a PeerLost for the others.
  explicit ThreadHub(std::size_t num_ranks, bool survives = false);

  /// `rank` has failed; the first rank counts. Returns whether this is the first. A program that
  /// this failure ends has the exit code `code`.
  bool fail(int rank, ExitCode code = ExitCode::kPeerLost, std::string_view reason = "");
  [[nodiscard]] bool failed() const { return failed_rank_.load() >= 0; }
  [[nodiscard]] int failed_rank() const { return failed_rank_.load(); }
  /// Throws CommError if a rank has failed. `rank` asks; -1: unknown.
  void check(int rank = -1) const;
  /// `rank` has left in the ordinary way.
  void leave(int rank);
  [[nodiscard]] const std::shared_ptr<Attendance>& attendance() const { return attendance_; }
  /// The bell of a rank's worker.
  [[nodiscard]] const std::shared_ptr<Doorbell>& bell(int rank) const {
    return bells_.at(static_cast<std::size_t>(rank));
  }
  /// Tells all workers that something has changed for which an operation may wait.
  void tell_all() const;

 private:
  bool survives_;
  std::atomic<int> failed_rank_ = -1;
  mutable std::mutex mutex_;
  ExitCode code_ = ExitCode::kPeerLost;  // guarded by mutex_
  std::string reason_;                   // likewise
  std::shared_ptr<Attendance> attendance_;
  std::vector<std::shared_ptr<Doorbell>> bells_;
};

enum class MeetingKind : std::uint8_t {
  kExchange,
  kMessage,
  kTagged,
  kAllReduce,
  kReduce,
  kBroadcast,
  kGather
};

/// One member's blocks, which are that member's own memory, or its text.
struct Contribution {
  ConstBlock send = {};
  Block receive = {};
  std::string text = {};
  bool here = false;
};

struct Meeting {
  explicit Meeting(std::size_t size) : members(size) {}

  MeetingKind kind = MeetingKind::kGather;
  std::vector<Contribution> members;  // written under the group's lock until all are here
  std::atomic<std::size_t> num_here = 0;
  std::atomic<std::size_t> num_done = 0;
  /// Members that are reading others' blocks at this moment.
  std::atomic<int> num_readers = 0;

  [[nodiscard]] bool complete() const { return num_here.load() == members.size(); }
  [[nodiscard]] bool over() const { return num_done.load() == members.size(); }
};

class ThreadGroup {
 public:
  /// The name of a meeting has three parts: its kind, two ranks, and a running number. Tagged
  /// messages of each tag have their own numbers. The two ranks are:
  ///
  /// - (low, high) for the pair of an exchange
  /// - (from, to) for a message or a tagged message
  /// - (-1, -1) for operations of all members
  using Key = std::tuple<MeetingKind, int, int, std::int64_t>;

  ThreadGroup(std::shared_ptr<ThreadHub> hub, std::vector<int> world_ranks)
      : hub_(std::move(hub)), world_ranks_(std::move(world_ranks)) {}

  [[nodiscard]] ThreadHub& hub() const { return *hub_; }
  [[nodiscard]] const std::vector<int>& world_ranks() const { return world_ranks_; }

  /// Brings the contribution of member `place` of `size`. Throws CommError when earlier members
  /// brought another operation, size or type.
  std::shared_ptr<Meeting> join(const Key& key, MeetingKind kind, std::size_t place,
                                std::size_t size, Contribution contribution);
  /// The members of a meeting that have come.
  std::vector<bool> who_is_here(const Meeting& meeting);
  /// Lays out memory for the others: the part of member `place` in the `number`-th sharing.
  void lay_out(std::int64_t number, std::size_t place, Buffer part);
  /// The parts of all members, when all have laid out theirs. Each member asks once.
  std::vector<Buffer> pick_up(std::int64_t number);
  /// The group of one color of the `number`-th split. The first member to ask makes it. Each member
  /// asks once.
  std::shared_ptr<ThreadGroup> subgroup(std::int64_t number, int color,
                                        std::vector<int> world_ranks);

 private:
  struct Sharing {
    std::vector<Buffer> parts;
    std::size_t num_left = 0;
  };
  struct Subgroup {
    std::shared_ptr<ThreadGroup> group;
    std::size_t num_left = 0;
  };

  std::shared_ptr<ThreadHub> hub_;
  std::vector<int> world_ranks_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Meeting>> open_;                // guarded by mutex_
  std::map<std::int64_t, Sharing> sharings_;                    // likewise
  std::map<std::pair<std::int64_t, int>, Subgroup> subgroups_;  // likewise
};

}  // namespace gossamer
