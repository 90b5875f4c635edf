#include "comm/tcp/renewing_session.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/fault_injector.hpp"
#include "comm/forwarding_communicator.hpp"
#include "comm/hmac.hpp"
#include "comm/membership/participant.hpp"
#include "comm/process_world.hpp"
#include "comm/tcp/backend.hpp"
#include "comm/tcp/mesh.hpp"
#include "comm/tcp/world.hpp"

namespace gossamer::tcp {
namespace {

using membership::Epoch;
using membership::MemberId;
using membership::Participant;

/// After so many failures of the connections with a member that is alive, the run goes on without
/// it.
constexpr int kMaxFailures = 3;

/// Those that join ask different members first.
std::size_t any_place() {
  const std::string bytes = random_bytes(2);
  return static_cast<unsigned char>(bytes[0]) * std::size_t{256} +
         static_cast<unsigned char>(bytes[1]);
}

/// This process as a member of a run that begins.
std::unique_ptr<Participant> begin_run(const MeetingOptions& meeting,
                                       std::unique_ptr<membership::Mesh> mesh,
                                       membership::EpochRecord record, Participant::Config config) {
  const MetRanks ranks = meet_ranks(meeting, take_rank(meeting),
                                    {.host = host_name(),
                                     .endpoint = mesh_endpoint(mesh->address()),
                                     .memory = mesh->address(),
                                     .is_dealt = meeting.rank < 0});
  Epoch first;
  for (const RankRecord& met : ranks.records) {
    first.members.push_back({.id = first.next_id++, .address = met.memory});
  }
  first.num_voters = first.next_id;
  if (record.begin(first) != first) {
    throw CommError({.rank = ranks.rank, .label = {.what = "start"}},
                    "the store has members of an earlier run of this name; give the run another "
                    "--run-id");
  }
  return std::make_unique<Participant>(std::move(mesh), std::move(record), ranks.rank, first,
                                       std::move(config));
}

std::unique_ptr<Participant> take_part(const LaunchOptions& options,
                                       const asio::ip::address& address) {
  const MeetingOptions& meeting = options.meeting;
  const std::string run = concat(meeting.run, "/members");
  const Logger logger(options.log_level, "members");
  MeshConfig mesh{.address = address,
                  .run = run_number(run),
                  .silence_s = options.fault.silence_s,
                  .logger = logger};
  if (!meeting.secret.empty()) mesh.tls = std::make_unique<TlsContext>(meeting.secret, run);
  Participant::Config config{
      .quorum = {.least = options.fault.min_ranks},
      .patience = std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * options.timeout_s)),
      .while_waiting = options.while_waiting,
      .logger = logger,
      .holds = true};
  membership::EpochRecord record(meeting.store, meeting.run, meeting.secret);
  if (options.fault.joins) {
    return Participant::join(make_mesh(std::move(mesh)), std::move(record), any_place(),
                             std::move(config));
  }
  return begin_run(meeting, make_mesh(std::move(mesh)), std::move(record), std::move(config));
}

class RenewingSession : public Session {
 public:
  explicit RenewingSession(const LaunchOptions& options)
      : options_(options),
        logger_(options.log_level, ""),
        address_(listening_address(options.meeting)),
        participant_(take_part(options, address_)) {
    enter_world(participant_->epoch().step);
    communicator_.emplace(*this);
  }

  [[nodiscard]] Communicator& communicator() override { return *communicator_; }
  [[nodiscard]] const World& world() const override { return world_; }

  void close() override {
    try {
      session_->close();
    } catch (const CommError&) {
      // All have done their work: some may be gone already, one may have died.
    }
    participant_->close();
  }

  bool abort(ExitCode code, std::string_view reason) override {
    bool is_first = true;
    if (is_deserted_) {
      // Between two epochs nobody else tells the reason.
      logger_.error(reason);
    } else {
      is_first = session_->abort(code, reason);
    }
    participant_->close();
    return is_first;
  }

 private:
  using Clock = std::chrono::steady_clock;

  class Renewing : public ForwardingCommunicator {
   public:
    explicit Renewing(RenewingSession& session)
        : ForwardingCommunicator(session.wire()), session_(session) {}
    [[nodiscard]] bool renews() const override { return true; }
    [[nodiscard]] Membership membership() const override {
      session_.participant_->admit();
      return session_.membership();
    }
    Membership renew(std::int64_t step) override {
      drop_parts();
      session_.renew(step);
      return session_.membership();
    }
    /// The world has a session of its own.
    void follow() { set_inner(session_.wire()); }

   private:
    RenewingSession& session_;
  };

  /// Collective in an epoch: makes its world. Throws PeerLost when the members change meanwhile, or
  /// when they cannot exchange.
  void open_world() {
    Arrival arrival(address_, /*is_dealt=*/false);
    const std::vector<std::string> texts = participant_->gather(arrival.record.text());
    MetRanks ranks{.records = {}, .rank = participant_->rank()};
    for (const std::string& text : texts) {
      ranks.records.push_back(RankRecord::of(text, static_cast<int>(ranks.records.size())));
    }
    const std::int64_t epoch = participant_->epoch().number;
    Transport::Config config{
        .epoch = static_cast<std::uint32_t>(epoch),
        .is_disturbed = [participant = participant_.get()] { return participant->is_disturbed(); }};
    LaunchOptions options = options_;
    const auto node_size = static_cast<std::size_t>(options.node_size);
    if (node_size > 0 && ranks.records.size() % node_size != 0) options.node_size = 1;
    Place place = make_place(options, std::move(arrival), ranks, std::move(config));
    const Logger logger(options.log_level, concat("rank ", place.rank));
    // What it says of the hosts has been said when the run began.
    const World world = world_on(place.hosts, place.rank, options, epoch == 0 ? logger : Logger());
    std::unique_ptr<TcpWorld> session = enter(std::move(place), world, options, logger);
    session_.swap(session);
    std::unique_ptr<Communicator> faulty;
    if (options_.fault.injector) {
      faulty =
          inject_faults(session_->communicator(), options_.fault.injector, membership().members);
    }
    faulty_.swap(faulty);
    // Before the last ones go.
    if (communicator_) communicator_->follow();
    world_ = world;
    is_deserted_ = false;
    began_ = Clock::now();
  }

  /// Enters the world of the present epoch, or of a later one if members die meanwhile. When those
  /// that have just joined have met the others, one more epoch begins, in which all vote.
  void enter_world(std::int64_t step) {
    while (true) {
      Suspects suspects;
      try {
        open_world();
        if (all_vote()) return;
        desert();
      } catch (const PeerLost& error) {
        suspects = suspects_of(error);
      }
      begin_epoch(step, suspects);
    }
  }

  using Suspects = std::vector<MemberId>;

  [[nodiscard]] bool all_vote() const {
    const Epoch& epoch = participant_->epoch();
    return epoch.num_voters == std::ssize(epoch.members);
  }

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

  /// Begins the next epoch. If it has the same members, the failure of the last one had another
  /// reason than a death: after kMaxFailures of them the run goes on without a suspect.
  void begin_epoch(std::int64_t step, const Suspects& suspects) {
    const Epoch before = participant_->epoch();
    participant_->renew(step);
    if (participant_->epoch().members != before.members) return num_failures_.clear();
    for (const MemberId member : suspects) {
      if (++num_failures_[member] < kMaxFailures) continue;
      num_failures_.erase(member);
      participant_->lose(member, step);
    }
  }

  /// What the session's communicator stands for at present.
  [[nodiscard]] Communicator& wire() { return faulty_ ? *faulty_ : session_->communicator(); }

  /// The present world is over. Its communicator stays until there is another one.
  void desert() {
    is_deserted_ = true;
    session_->desert();
  }

  void renew(std::int64_t step) {
    const std::chrono::duration<double> lived = Clock::now() - began_;
    if (lived.count() > options_.fault.silence_s) num_failures_.clear();
    const Suspects suspects = suspects_of_world();
    desert();
    begin_epoch(step, suspects);
    enter_world(step);
  }

  [[nodiscard]] Communicator::Membership membership() const {
    const Epoch& epoch = participant_->epoch();
    Communicator::Membership membership{
        .world = world_, .step = epoch.step, .epoch = epoch.number, .members = {}};
    for (const membership::Member& member : epoch.members) {
      membership.members.push_back(member.id);
    }
    return membership;
  }

  LaunchOptions options_;
  Logger logger_;
  asio::ip::address address_;
  std::unique_ptr<Participant> participant_;
  /// That of the present epoch; while the members agree, that of the last one.
  std::unique_ptr<TcpWorld> session_;
  /// Its communicator with faults; null: without.
  std::unique_ptr<Communicator> faulty_;
  World world_;
  bool is_deserted_ = true;
  Clock::time_point began_;
  /// How often this rank itself has lost a member that is alive.
  std::map<MemberId, int> num_failures_;
  std::optional<Renewing> communicator_;
};

}  // namespace

std::unique_ptr<Session> open_renewing(const LaunchOptions& options) {
  return std::make_unique<RenewingSession>(options);
}

}  // namespace gossamer::tcp
