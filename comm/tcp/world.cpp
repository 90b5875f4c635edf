#include "comm/tcp/world.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include <unistd.h>

#include "base/text.hpp"
#include "comm/hmac.hpp"
#include "comm/tcp/address.hpp"

namespace gossamer::tcp {
namespace {

std::string link_text(const char* path) {
  std::array<char, 256> text{};
  const ssize_t length = readlink(path, text.data(), text.size());
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

/// Processes have the same text exactly if they run on one host, as far as sharing memory goes: one
/// boot of one kernel, and one view of processes and networks. One word.
std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::string text = concat(name.data(), "/", boot, "/", link_text("/proc/self/ns/pid"), "/",
                            link_text("/proc/self/ns/net"));
  std::ranges::replace(text, ' ', '_');
  return text;
}

/// What a rank tells the others in the store.
struct Record {
  std::string host;
  asio::ip::tcp::endpoint endpoint;
  /// MemoryMark::text().
  std::string memory;
  /// The rank was dealt by arrival.
  bool is_dealt = false;

  [[nodiscard]] std::string text() const {
    return concat(host, " ", endpoint.address().to_string(), " ", endpoint.port(), " ",
                  is_dealt ? 1 : 0, " ", memory);
  }
  static Record of(const std::string& text, int rank) {
    std::istringstream in(text);
    Record record;
    std::string address;
    std::uint16_t port = 0;
    asio::error_code error;
    if (in >> record.host >> address >> port >> record.is_dealt &&
        std::getline(in >> std::ws, record.memory)) {
      record.endpoint = {asio::ip::make_address(address, error), port};
      if (!error) return record;
    }
    throw CommError({.peers = {rank}, .label = {.what = "start"}},
                    concat("this is no record of a rank: ", visible(text),
                           "; use one version of gossamer on all hosts"));
  }
};

/// Ranks that were dealt by arrival are renumbered host by host, so that the ranks of a host are
/// consecutive, as topologies of nodes want it. Returns the arrivals in the order of the ranks.
std::vector<std::size_t> order_of(const std::vector<Record>& records) {
  std::vector<std::size_t> order(records.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!std::ranges::all_of(records, &Record::is_dealt)) return order;
  const auto first_of_host = [&](std::size_t i) {
    return std::ranges::find(records, records[i].host, &Record::host) - records.begin();
  };
  std::ranges::stable_sort(order, {}, first_of_host);
  return order;
}

/// Only this machine may connect to a rank that asks for no secret, and such a rank connects to
/// this machine alone.
void require_closed(const MeetingOptions& meeting, const asio::ip::address& address) {
  if (!meeting.secret.empty() || meeting.is_open || address.is_loopback()) return;
  throw ConfigError(
      concat("ranks on several hosts need a secret, or anybody who reaches ", address.to_string(),
             " could join the run: make one with `gossamer secret`, and give it to all ranks as "
             "GOSSAMER_SECRET; or set comm.security=none in a network that you trust"));
}

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

/// Others cannot reach a loopback address.
void require_reachable(const std::vector<Record>& records) {
  const auto is_elsewhere = [&](const Record& record) { return record.host != records[0].host; };
  if (std::ranges::none_of(records, is_elsewhere)) return;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (!records[rank].endpoint.address().is_loopback()) continue;
    throw ConfigError(concat("rank ", rank, " announces ",
                             records[rank].endpoint.address().to_string(),
                             ", which other hosts cannot reach; name an interface or an address of "
                             "its host as comm.interface"));
  }
}

std::uint64_t run_number(const std::string& run) {
  std::uint64_t number = 0;
  for (const char c : hmac_sha256("", run).substr(0, sizeof number)) {
    number = number << 8U | static_cast<unsigned char>(c);
  }
  return number;
}

/// The hosts as numbers, and the ranks on this host as processes.
void fill_in(const std::vector<Record>& records, bool reads_memory, Place& place,
             Transport::Config& config) {
  const std::string& own_host = records[static_cast<std::size_t>(place.rank)].host;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const Record& record = records[rank];
    place.hosts.push_back(
        static_cast<int>(std::ranges::find(records, record.host, &Record::host) - records.begin()));
    Transport::Peer peer{.endpoint = record.endpoint};
    if (reads_memory && record.host == own_host && static_cast<int>(rank) != place.rank) {
      peer.memory = ProcessMemory::of(record.memory);
    }
    config.peers.push_back(std::move(peer));
  }
}

}  // namespace

Place find_place(const LaunchOptions& options) {
  const MeetingOptions& meeting = options.meeting;
  require_possible(meeting);
  Place place;
  place.attendance = std::make_shared<Attendance>(static_cast<std::size_t>(meeting.size));
  Transport::Config config{.num_streams = meeting.num_streams,
                           .timeout_s = options.timeout_s,
                           .attendance = place.attendance};
  auto bell = std::make_shared<SocketBell>();
  MemoryMark mark;
  if (meeting.store == nullptr) {
    place.hosts = {0};
    config.peers.resize(1);
    place.transport = std::make_shared<Transport>(bell, nullptr, std::move(config));
    return place;
  }
  const asio::ip::address address = asio::ip::make_address(own_address(meeting));
  require_closed(meeting, address);
  const int arrival = take_rank(meeting);
  auto listener = std::make_unique<Listener>(bell->io(), address);
  const Record own{.host = host_name(),
                   .endpoint = {address, listener->port()},
                   .memory = mark.text(),
                   .is_dealt = meeting.rank < 0};
  std::vector<Record> arrived;
  for (const std::string& text : exchange_records(meeting, arrival, own.text())) {
    arrived.push_back(Record::of(text, static_cast<int>(arrived.size())));
    require_closed(meeting, arrived.back().endpoint.address());
  }
  std::vector<Record> records;
  for (const std::size_t i : order_of(arrived)) {
    if (static_cast<int>(i) == arrival) place.rank = static_cast<int>(records.size());
    records.push_back(arrived[i]);
  }
  fill_in(records, meeting.reads_memory, place, config);
  require_reachable(records);
  config.rank = place.rank;
  config.logger = Logger(options.log_level, concat("rank ", place.rank));
  config.run = run_number(meeting.run);
  config.memory_mark = std::move(mark);
  if (!meeting.secret.empty()) {
    config.tls = std::make_unique<TlsContext>(meeting.secret, meeting.run);
  }
  place.transport = std::make_shared<Transport>(bell, std::move(listener), std::move(config));
  return place;
}

}  // namespace gossamer::tcp
