#include "comm/elastic/elastic_session.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/forwarding_communicator.hpp"

namespace gossamer {
namespace {

using membership::Epoch;
using membership::MemberId;
using membership::Participant;

/// After so many failures of the connections with a member that is alive, the run goes on without
/// it.
constexpr int kMaxFailures = 3;
/// After so many epochs in a row in which an exchange has timed out and none has ended before, the
/// run ends.
constexpr int kMaxStalls = 3;

class ElasticSession : public Session {
 public:
  ElasticSession(const LaunchOptions& options, std::unique_ptr<Participant> participant,
                 std::unique_ptr<EpochWorlds> worlds)
      : fault_(options.fault),
        logger_(options.log_level, ""),
        participant_(std::move(participant)),
        worlds_(std::move(worlds)) {
    enter_world(participant_->epoch().step);
    communicator_.emplace(*this);
  }

  [[nodiscard]] Communicator& communicator() override { return *communicator_; }
  [[nodiscard]] const World& world() const override { return world_; }

  void tell_steps(std::int64_t num_steps) override { session_->tell_steps(num_steps); }

  void lift_timeout() override { session_->lift_timeout(); }

  void close() override {
    try {
      session_->close();
    } catch (const CommError&) {
      // All have done their work: some may be gone already, one may have died.
    }
    participant_->close();
  }

  bool abort(ExitCode code, std::string_view reason) override {
    bool is_first = false;
    if (is_abandoned_) {
      // Another rank has failed. Between two epochs no other part tells why this rank does.
      logger_.error(reason);
    } else {
      is_first = session_->abort(code, reason);
    }
    participant_->close();
    return is_first;
  }

 private:
  using Clock = std::chrono::steady_clock;

  class Elastic : public ForwardingCommunicator {
   public:
    explicit Elastic(ElasticSession& session)
        : ForwardingCommunicator(session.wire()), session_(session) {}
    Elastic* elastic() override { return this; }
    /// The world has a session of its own.
    void use_current_world() { set_inner(session_.wire()); }

   private:
    [[nodiscard]] Membership membership() const override { return session_.membership(); }
    void admit(bool admits) override { session_.participant_->admit(admits); }
    Membership reconfigure(std::int64_t step) override {
      drop_subgroups();
      session_.reconfigure(step);
      return session_.membership();
    }

    ElasticSession& session_;
  };

  void open_world() {
    std::unique_ptr<EpochSession> session = worlds_->enter(*participant_);
    session_.swap(session);
    world_ = session_->world();
    std::unique_ptr<Communicator> wrapped;
    if (fault_.wrap) wrapped = fault_.wrap(session_->communicator(), membership().members);
    wrapped_.swap(wrapped);
    // Before the last ones go.
    if (communicator_) communicator_->use_current_world();
    is_abandoned_ = false;
    began_ = Clock::now();
  }

  /// Enters the world of the present epoch, or of a later one if members die meanwhile.
  void enter_world(std::int64_t step) {
    while (true) {
      Suspects suspects;
      try {
        open_world();
        count_stalls();
        return;
      } catch (const PeerLost& error) {
        suspects = suspects_of(error);
      }
      begin_epoch(step, suspects);
    }
  }

  using Suspects = std::vector<MemberId>;

  /// The members that this rank itself has lost.
  [[nodiscard]] Suspects suspects_of(const PeerLost& error) const {
    Suspects suspects;
    if (!error.is_own()) return suspects;
    for (const int rank : error.context().peers) {
      suspects.push_back(participant_->epoch().members.at(static_cast<std::size_t>(rank)).id);
    }
    return suspects;
  }

  /// The members that this rank has lost in the present world.
  Suspects suspects_of_world() {
    try {
      session_->communicator().check();
    } catch (const PeerLost& error) {
      return suspects_of(error);
    }
    return {};
  }

  /// Collective. All ranks count alike, whichever of them an exchange has kept waiting.
  void count_stalls() {
    Communicator& communicator = session_->communicator();
    // Nothing can have failed before the first epoch.
    if (participant_->epoch().number == 0) return;
    const std::vector<std::string> answers =
        communicator.all_gather(has_stalled_ ? concat(num_stalls_ + 1) : "");
    has_stalled_ = false;
    num_stalls_ = 0;
    for (const std::string& answer : answers) {
      int num_stalls = 0;
      if (parse_whole(answer, num_stalls)) num_stalls_ = std::max(num_stalls_, num_stalls);
    }
    if (num_stalls_ < kMaxStalls) return;
    try {
      // A rank that leaves before the others have the answers keeps the reason from them.
      communicator.barrier();
    } catch (const CommError&) {
      // All others have the answers, and one has left.
    }
    throw CommError(
        {.rank = world_.rank, .label = {.what = "communication"}},
        concat("exchanges have failed ", num_stalls_, " times in a row after comm.timeout_s, and ",
               "none has ended in between, although all ", world_.size, " ranks are alive: the ",
               "run would go on without mixing. Raise comm.timeout_s if a rank needs longer for ",
               "its step than that; otherwise something between the hosts lets no large messages ",
               "through. Then continue from the last checkpoint"));
  }

  /// Begins the next epoch. If it has the same members, the failure of the last one had another
  /// reason than a death: after kMaxFailures of them the run goes on without a suspect.
  void begin_epoch(std::int64_t step, const Suspects& suspects) {
    const Epoch before = participant_->epoch();
    participant_->reconfigure(step);
    if (participant_->epoch().members != before.members) {
      has_stalled_ = false;
      return num_failures_.clear();
    }
    bool has_lost = false;
    for (const MemberId member : suspects) {
      if (++num_failures_[member] < kMaxFailures) continue;
      participant_->lose(member, step);
      has_lost = true;
    }
    if (!has_lost) return;
    // That has ended the epoch which has just begun.
    participant_->reconfigure(step);
    has_stalled_ = false;
    num_failures_.clear();
  }

  /// What the session's communicator stands for at present.
  [[nodiscard]] Communicator& wire() { return wrapped_ ? *wrapped_ : session_->communicator(); }

  /// The present world is over. Its communicator stays until there is another one.
  void abandon() {
    is_abandoned_ = true;
    session_->abandon();
  }

  void reconfigure(std::int64_t step) {
    const std::chrono::duration<double> lived = Clock::now() - began_;
    if (lived.count() > fault_.silence_s) num_failures_.clear();
    const Suspects suspects = suspects_of_world();
    has_stalled_ = session_->has_stalled();
    abandon();
    begin_epoch(step, suspects);
    enter_world(step);
  }

  [[nodiscard]] Membership membership() const {
    const Epoch& epoch = participant_->epoch();
    Membership membership{.world = world_,
                          .step = epoch.step,
                          .epoch = epoch.number,
                          .members = {},
                          .all_vote = epoch.num_voters == std::ssize(epoch.members)};
    for (const membership::Member& member : epoch.members) {
      membership.members.push_back(member.id);
    }
    return membership;
  }

  FaultOptions fault_;
  Logger logger_;
  std::unique_ptr<Participant> participant_;
  std::unique_ptr<EpochWorlds> worlds_;
  /// The world of the present epoch; while the members agree, the world of the last epoch.
  std::unique_ptr<EpochSession> session_;
  /// Its communicator with faults; null: without.
  std::unique_ptr<Communicator> wrapped_;
  World world_;
  bool is_abandoned_ = true;
  Clock::time_point began_;
  /// How often this rank itself has lost a member that is alive.
  std::map<MemberId, int> num_failures_;
  /// Whether an exchange of this rank has stalled in the epoch before.
  bool has_stalled_ = false;
  /// How many epochs in a row have ended with a stall; all ranks have the same number.
  int num_stalls_ = 0;
  std::optional<Elastic> communicator_;
};

}  // namespace

Participant::Config participant_config(const LaunchOptions& options) {
  // Packets that begin a connection are sent again after 1, 3 and 7 s.
  constexpr double kShortestMeeting = 10.0;
  return {
      .quorum = {.least = options.fault.min_ranks},
      .patience = std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * options.timeout_s)),
      .while_waiting = options.while_waiting,
      .logger = Logger(options.log_level, "members"),
      .holds = true,
      .trains = options.fault.trains,
      .meeting = std::chrono::milliseconds(
          static_cast<std::int64_t>(1e3 * std::max(options.fault.silence_s, kShortestMeeting))),
      .end_broken = membership::end_process,
      .grace = std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * options.fault.silence_s))};
}

int renewed_node_size(const LaunchOptions& options, int size) {
  return options.node_size > 0 && size % options.node_size != 0 ? 1 : options.node_size;
}

std::unique_ptr<Session> open_elastic(const LaunchOptions& options,
                                      std::unique_ptr<Participant> participant,
                                      std::unique_ptr<EpochWorlds> worlds) {
  return std::make_unique<ElasticSession>(options, std::move(participant), std::move(worlds));
}

}  // namespace gossamer
