#pragma once
// Stands for NCCL where there is no GPU: the same calls with the same rules, whose operations meet
// on the threads of ThreadStreams. An operation holds its stream up until all members have come;
// sends end when they are received, so that what would deadlock under NCCL deadlocks here.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "comm/nccl/api.hpp"

namespace gossamer {

/// What the ranks of a test share.
class FakeNcclHub {
 public:
  struct Group {
    std::string id;
    int size = 0;
  };
  /// One member's end of a communicator.
  struct Member {
    std::string id;
    int rank = 0;
    int size = 0;
    bool aborted = false;
    bool finalized = false;
    bool destroyed = false;
    int num_splits = 0;
    std::int64_t num_collectives = 0;
    std::map<int, std::int64_t> num_sent = {};
    std::map<int, std::int64_t> num_received = {};
    /// Calls of progress() that still say no.
    int in_progress = 2;
    /// The split() that has begun; empty: none. What it makes is written to `part` when all members
    /// have come.
    std::string split = {};
    NcclApi::Comm* part = nullptr;
  };
  struct Message {
    ConstBlock block;
    bool taken = false;
  };
  struct Meeting {
    std::map<int, ConstBlock> sent;
    int num_done = 0;
  };
  using MessageKey = std::tuple<std::string, int, int, std::int64_t>;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<MessageKey, Message> messages;
  std::map<std::pair<std::string, std::int64_t>, Meeting> meetings;
  /// Colors and keys of members, by split.
  std::map<std::string, std::map<int, std::pair<int, int>>> splits;
  int num_ids = 0;
  /// Communicators, over all ranks.
  int num_made = 0;
  int num_finalized = 0;
  int num_destroyed = 0;
  int num_aborted = 0;
  /// finalize() never comes to its end.
  bool finalize_hangs = false;
};

class FakeNccl : public NcclApi {
 public:
  explicit FakeNccl(FakeNcclHub& hub) : hub_(hub) {}

  [[nodiscard]] std::string version() const override { return "none"; }
  std::string unique_id() override;
  Comm init(const std::string& id, int rank, int size) override;
  void split(Comm comm, int color, int key, Comm* part) override;
  bool progress(Comm comm) override;
  void group_start() override { in_group_ = true; }
  void group_end() override;
  void send(Comm comm, const ConstBlock& block, int peer, Stream& stream) override;
  void receive(Comm comm, const Block& block, int peer, Stream& stream) override;
  void all_reduce_sum(Comm comm, const ConstBlock& send, const Block& receive,
                      Stream& stream) override;
  void broadcast(Comm comm, const Block& block, int root, Stream& stream) override;
  void finalize(Comm comm) override;
  void destroy(Comm comm) override;
  void abort(std::span<const Comm> comms) noexcept override;

  /// What a progress() soon throws; once.
  void set_error(std::string error);

 private:
  using Member = FakeNcclHub::Member;
  Member& member(Comm comm) { return *static_cast<Member*>(comm); }
  /// Of a communicator that takes operations.
  Member& open_member(Comm comm);
  /// The hub is locked.
  Comm add(Member member);
  /// Whether the split() that has begun is over; ends it when all members have come.
  bool end_split(Member& parent);
  void collective(Comm comm, const ConstBlock& send, Stream& stream,
                  std::function<void(const std::map<int, ConstBlock>&)> finish);

  std::mutex error_mutex_;
  std::string next_error_;
  FakeNcclHub& hub_;
  std::deque<std::shared_ptr<Member>> members_;
  bool in_group_ = false;
  Stream* group_stream_ = nullptr;
  std::vector<std::function<void()>> posts_;
  std::vector<std::function<void()>> waits_;
};

}  // namespace gossamer
