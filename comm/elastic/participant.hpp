#pragma once
// A process that is a member of a run: does what the rules of Agreement say, over a Mesh and with
// the record in the store.
//
// Protocol: between two calls of reconfigure() the member trains in its epoch().
//
// 1. When is_disturbed(), or when an exchange has failed, the member ends its step.
// 2. reconfigure() returns the next epoch.
// 3. gather() exchanges the data that the members of this epoch need to train together. If it
//    throws PeerLost, the members have changed again, and the caller goes back to reconfigure().
//
// The other members count a member that goes away without close() as lost.
//
// Thread safety: is_disturbed() from any thread, all else from one.
// Errors: CommError when this member has to leave. Its exit code is kPreempted if the others have
// gone on without it, else kPeerLost.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "comm/elastic/agreement.hpp"
#include "comm/elastic/inbox.hpp"
#include "comm/elastic/record.hpp"

namespace gossamer::membership {

class Participant {
 public:
  struct Config {
    Quorum quorum = {};
    /// How long it waits for other members, which may be in a long step, and for the store.
    std::chrono::milliseconds patience{300'000};
    /// Called now and then while a rank waits (LaunchOptions::while_waiting).
    std::function<void()> while_waiting = {};
    Logger logger = {};
    /// True: processes that ask to join wait until admit(true).
    bool holds = false;
    /// A description of the training, as lines. A process that joins must have the same
    /// description.
    std::string trains = {};
    /// How long a process that joins tries to connect with the members. If it loses one of them, it
    /// waits as long again for the others to go on without that member.
    std::chrono::milliseconds meeting{10'000};
    /// Inbox::Config's.
    LastWatch::End end_broken = {};
    std::chrono::milliseconds grace{0};
  };

  /// `epoch` is what EpochRecord::begin() has returned. Watches over its members.
  Participant(std::unique_ptr<Mesh> mesh, EpochRecord record, MemberId self, const Epoch& epoch,
              Config config);
  /// Lets this process join the run of the record. Blocks until an epoch has it. Asks when it is
  /// connected with every member in both directions, and until then the members notice nothing.
  /// `first`: the place of the member that it asks first. Throws CommError when no member lets it
  /// in, and where a member cannot be reached, or does not reach this process.
  static std::unique_ptr<Participant> join(std::unique_ptr<Mesh> mesh, EpochRecord record,
                                           std::size_t first, Config config);

  [[nodiscard]] MemberId self() const { return self_; }
  [[nodiscard]] const Epoch& epoch() const { return agreement_.epoch(); }
  /// The place of this member in its epoch.
  [[nodiscard]] int rank() const;
  /// The members begin a new epoch: exchanges of this one do not end.
  [[nodiscard]] bool is_disturbed() const { return inbox_->is_disturbed(); }

  /// Ends the epoch, and returns the next epoch that this member is in. `step` is the number of
  /// steps that the member has made. Blocks until all other members that it reaches have called
  /// reconfigure() as well. Goes on without members that have not called it within
  /// Config::patience; for members with lower ids it waits twice as long.
  const Epoch& reconfigure(std::int64_t step);
  /// Collective in an epoch, once. Returns the texts of all its members, in their order. Throws
  /// PeerLost if the members change meanwhile.
  std::vector<std::string> gather(const std::string& text);
  /// Goes on without this member, which is there, but cannot exchange. `step`: the steps that this
  /// rank has made.
  void lose(MemberId peer, std::int64_t step);
  /// Leaves. Members that are not about to leave as well take this member for dead.
  void close() { inbox_->close(); }
  /// Whether processes that ask to join wait no more (Config::holds).
  void admit(bool admits) { inbox_->admit(admits); }

 private:
  using Event = Inbox::Event;

  /// The processes whose connection has ended, and why.
  using Lost = std::map<std::string, std::string>;
  /// The state of a process before it is a member: the processes that it has lost, and the messages
  /// for gather() that it has received.
  struct Joined {
    Config config;
    std::unique_ptr<Inbox> inbox;
    EpochRecord record;
    Lost lost = {};
    std::map<std::int64_t, std::map<std::string, std::string>> entries = {};
  };
  class Joining;
  static Inbox::Config inbox_config(const Config& config);
  Participant(Joined joined, MemberId self, const Epoch& epoch);

  /// The first calls of one that has joined: loses the members whose connection has ended, and
  /// welcomes the processes that have asked it to let them join.
  void begin(const std::set<std::string>& asking);
  /// Waits for an event, and handles it. Goes on without each member of `awaited` for which it has
  /// waited for Config::patience. For members with lower ids it waits `patience_for_lower` times as
  /// long.
  void handle_next(const std::vector<MemberId>& awaited, int patience_for_lower);
  void handle(const Event& event);
  void act(const Actions& actions);
  void carry_out(const Action& action, std::deque<Action>& further);
  /// The store's answer: the epoch that it has.
  template <class Ask>
  Actions ask_store(std::int64_t asked, const Ask& ask);
  [[noreturn]] void leave(const Leave& leave) const;
  /// The places of the lost members of this member's cohort, as a part of a message.
  [[nodiscard]] std::string lost_places() const;
  /// The members of the epoch that this member has lost, with the reasons, as the end of a message.
  [[nodiscard]] std::string own_losses() const;

  Config config_;
  std::unique_ptr<Inbox> inbox_;
  EpochRecord record_;
  MemberId self_;
  Agreement agreement_;
  std::int64_t step_ = 0;
  /// The number of the epoch that reconfigure() has returned last.
  std::int64_t returned_ = 0;
  /// A new epoch has been adopted, and its lost members are not told yet.
  bool has_adopted_ = false;
  Lost lost_;
  /// The texts that members have sent for gather(), by epoch and address.
  std::map<std::int64_t, std::map<std::string, std::string>> entries_;
  std::string store_error_;
  /// For each member that this process waits for: the time at which the wait began.
  std::map<MemberId, std::chrono::steady_clock::time_point> awaited_since_;
};

}  // namespace gossamer::membership
