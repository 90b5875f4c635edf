#include "comm/tcp/elastic_worlds.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/collectives/process_world.hpp"
#include "comm/elastic/elastic_session.hpp"
#include "comm/hmac.hpp"
#include "comm/tcp/backend.hpp"
#include "comm/tcp/mesh.hpp"
#include "comm/tcp/world.hpp"

namespace gossamer::tcp {
namespace {

using membership::Epoch;
using membership::Participant;

/// Processes that join ask different members first.
std::size_t any_place() {
  const std::string bytes = random_bytes(2);
  return static_cast<unsigned char>(bytes[0]) * std::size_t{256} +
         static_cast<unsigned char>(bytes[1]);
}

/// This process as a member of a run that begins.
std::unique_ptr<Participant> begin_run(const MeetingOptions& meeting,
                                       std::unique_ptr<membership::Mesh> mesh,
                                       membership::EpochRecord record, Participant::Config config) {
  const MetRanks ranks = meet_ranks(meeting, {.host = memory_domain(),
                                              .endpoint = mesh_endpoint(mesh->address()),
                                              .memory = mesh->address(),
                                              .is_dealt = meeting.rank < 0});
  Epoch first;
  for (const RankRecord& met : ranks.records) {
    first.members.push_back({.id = first.next_id++, .address = met.memory});
  }
  first.num_voters = first.next_id;
  if (record.begin(first) != first) {
    throw CommError(
        {.rank = ranks.rank, .label = {.what = "start"}},
        concat("the store has members of an earlier run of this name; ", leftover_advice(meeting)));
  }
  return std::make_unique<Participant>(std::move(mesh), std::move(record), ranks.rank, first,
                                       std::move(config));
}

std::unique_ptr<Participant> take_part(const LaunchOptions& options,
                                       const asio::ip::address& address) {
  const MeetingOptions& meeting = options.meeting;
  // Each member has two connections with each other member beside those of training.
  if (!options.fault.joins) require_files(meeting, 2);
  const std::string run = concat(meeting.run, "/members");
  Participant::Config config = participant_config(options);
  MeshConfig mesh{.address = address,
                  .run = run_number(run),
                  .silence_s = options.fault.silence_s,
                  .cohort = options.fault.cohort,
                  .logger = config.logger};
  if (!meeting.secret.empty()) mesh.tls = std::make_unique<TlsContext>(meeting.secret, run);
  membership::EpochRecord record(meeting.store, meeting.run, meeting.secret);
  if (options.fault.joins) {
    mesh.meeting_s = std::chrono::duration<double>(config.meeting).count();
    // Mates ask the same member, which lets them in together.
    const std::size_t first = options.fault.cohort.size > 1 ? 0 : any_place();
    return Participant::join(make_mesh(std::move(mesh)), std::move(record), first,
                             std::move(config));
  }
  return begin_run(meeting, make_mesh(std::move(mesh)), std::move(record), std::move(config));
}

class TcpWorlds : public EpochWorlds {
 public:
  TcpWorlds(const LaunchOptions& options, asio::ip::address address)
      : options_(options), address_(std::move(address)) {}

  std::unique_ptr<EpochSession> enter(Participant& self) override {
    Arrival arrival(address_, /*is_dealt=*/false);
    const std::vector<std::string> texts = self.gather(arrival.record.text());
    MetRanks ranks{.records = {}, .rank = self.rank()};
    for (const std::string& text : texts) {
      ranks.records.push_back(RankRecord::of(text, static_cast<int>(ranks.records.size())));
    }
    const std::int64_t epoch = self.epoch().number;
    Transport::Config config{.epoch = static_cast<std::uint32_t>(epoch),
                             .is_disturbed = [&self] { return self.is_disturbed(); }};
    LaunchOptions options = options_;
    options.node_size = renewed_node_size(options, static_cast<int>(ranks.records.size()));
    Place place = make_place(options, std::move(arrival), ranks, std::move(config));
    const Logger logger(options.log_level, concat("rank ", place.rank));
    // What it says of the hosts has been said when the run began.
    const World world = world_on(place.hosts, place.rank, options, epoch == 0 ? logger : Logger());
    return tcp::enter(std::move(place), world, options, logger);
  }

 private:
  LaunchOptions options_;
  asio::ip::address address_;
};

}  // namespace

std::unique_ptr<Session> open_elastic(const LaunchOptions& options) {
  const asio::ip::address address = listening_address(options.meeting);
  auto participant = take_part(options, address);
  return gossamer::open_elastic(options, std::move(participant),
                                std::make_unique<TcpWorlds>(options, address));
}

}  // namespace gossamer::tcp
