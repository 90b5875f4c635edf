#include "comm/tcp/world.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "comm/tcp/address.hpp"

namespace gossamer::tcp {
namespace {

void require_possible(const MeetingOptions& meeting) {
  if (meeting.size < 1) {
    throw ConfigError(concat("a world of ", meeting.size, " ranks, allowed: 1 or more"));
  }
  if (meeting.rank >= meeting.size) {
    throw ConfigError(concat("rank ", meeting.rank, " of ", meeting.size, " ranks, allowed: 0 to ",
                             meeting.size - 1));
  }
  if (meeting.num_streams < 0 || meeting.num_streams > StreamCount::kMax) {
    throw ConfigError(concat("comm.streams: ", meeting.num_streams, ", allowed: auto, or 1 to ",
                             StreamCount::kMax));
  }
}

/// The hosts as numbers, and the ranks on this host as processes.
void fill_in(const std::vector<RankRecord>& records, bool reads_memory, Place& place,
             Transport::Config& config) {
  const std::string& own_host = records[static_cast<std::size_t>(place.rank)].host;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const RankRecord& record = records[rank];
    place.hosts.push_back(static_cast<int>(
        std::ranges::find(records, record.host, &RankRecord::host) - records.begin()));
    Transport::Peer peer{.endpoint = record.endpoint};
    if (reads_memory && record.host == own_host && static_cast<int>(rank) != place.rank) {
      peer.memory = ProcessMemory::of(record.memory);
    }
    config.peers.push_back(std::move(peer));
  }
}

}  // namespace

asio::ip::address listening_address(const MeetingOptions& meeting) {
  require_possible(meeting);
  const asio::ip::address address = asio::ip::make_address(own_address(meeting));
  require_closed(meeting, address);
  return address;
}

Arrival::Arrival(const asio::ip::address& address, bool is_dealt)
    : bell(std::make_shared<SocketBell>()),
      listener(std::make_unique<Listener>(bell->io(), address)),
      record{.host = memory_domain(),
             .endpoint = {address, listener->port()},
             .memory = mark.text(),
             .is_dealt = is_dealt} {}

Place make_place(const LaunchOptions& options, Arrival arrival, const MetRanks& ranks,
                 Transport::Config config) {
  const MeetingOptions& meeting = options.meeting;
  Place place{.rank = ranks.rank, .attendance = std::make_shared<Attendance>(ranks.records.size())};
  config.rank = place.rank;
  config.num_streams = meeting.num_streams;
  config.timeout_s = options.timeout_s;
  config.attendance = place.attendance;
  config.logger = Logger(options.log_level, concat("rank ", place.rank));
  config.run = run_number(meeting.run);
  config.memory_mark = std::move(arrival.mark);
  if (!meeting.secret.empty()) {
    config.tls = std::make_unique<TlsContext>(meeting.secret, meeting.run);
  }
  fill_in(ranks.records, meeting.reads_memory, place, config);
  place.transport = std::make_shared<Transport>(std::move(arrival.bell),
                                                std::move(arrival.listener), std::move(config));
  return place;
}

Place find_place(const LaunchOptions& options) {
  const MeetingOptions& meeting = options.meeting;
  require_possible(meeting);
  if (meeting.store == nullptr) {
    Place place{.hosts = {0}, .attendance = std::make_shared<Attendance>(1)};
    Transport::Config config{.timeout_s = options.timeout_s, .attendance = place.attendance};
    config.peers.resize(1);
    place.transport =
        std::make_shared<Transport>(std::make_shared<SocketBell>(), nullptr, std::move(config));
    return place;
  }
  const asio::ip::address address = listening_address(meeting);
  Arrival arrival(address, meeting.rank < 0);
  const MetRanks ranks = meet_ranks(meeting, arrival.record);
  return make_place(options, std::move(arrival), ranks, {});
}

}  // namespace gossamer::tcp
