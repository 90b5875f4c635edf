#include "comm/tcp/rank_record.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <sstream>
#include <utility>

#include <unistd.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/hmac.hpp"

namespace gossamer::tcp {
namespace {

std::string link_text(const char* path) {
  std::array<char, 256> text{};
  const ssize_t length = readlink(path, text.data(), text.size());
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

/// Returns the arrivals in the order of the ranks.
std::vector<std::size_t> order_of(const std::vector<RankRecord>& records) {
  std::vector<std::size_t> order(records.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!std::ranges::all_of(records, &RankRecord::is_dealt)) return order;
  const auto first_of_host = [&](std::size_t i) {
    return std::ranges::find(records, records[i].host, &RankRecord::host) - records.begin();
  };
  std::ranges::stable_sort(order, {}, first_of_host);
  return order;
}

/// Others cannot reach a loopback address.
void require_reachable(const std::vector<RankRecord>& records) {
  const auto is_elsewhere = [&](const RankRecord& record) {
    return record.host != records[0].host;
  };
  if (std::ranges::none_of(records, is_elsewhere)) return;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (!records[rank].endpoint.address().is_loopback()) continue;
    throw ConfigError(concat("rank ", rank, " announces ",
                             records[rank].endpoint.address().to_string(),
                             ", which other hosts cannot reach; name an interface or an address of "
                             "its host as comm.interface"));
  }
}

}  // namespace

std::string memory_domain() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::string text = concat(name.data(), "/", boot, "/", link_text("/proc/self/ns/pid"), "/",
                            link_text("/proc/self/ns/net"));
  std::ranges::replace(text, ' ', '_');
  return text;
}

std::string RankRecord::text() const {
  return concat(host, " ", endpoint.address().to_string(), " ", endpoint.port(), " ",
                is_dealt ? 1 : 0, " ", memory);
}

RankRecord RankRecord::of(const std::string& text, int rank) {
  std::istringstream in(text);
  RankRecord record;
  std::string address;
  std::uint16_t port = 0;
  asio::error_code error;
  if (in >> record.host >> address >> port >> record.is_dealt) {
    std::getline(in >> std::ws, record.memory);
    record.endpoint = {asio::ip::make_address(address, error), port};
    if (!error) return record;
  }
  throw CommError({.peers = {rank}, .label = {.what = "start"}},
                  concat("this is no record of a rank: ", visible(text),
                         "; use one version of gossamer on all hosts"));
}

std::uint64_t run_number(const std::string& run) {
  std::uint64_t number = 0;
  for (const char c : hmac_sha256("", run).substr(0, sizeof number)) {
    number = number << 8U | static_cast<unsigned char>(c);
  }
  return number;
}

void require_closed(const MeetingOptions& meeting, const asio::ip::address& address) {
  if (!meeting.secret.empty() || meeting.is_open || address.is_loopback()) return;
  throw ConfigError(
      concat("ranks on several hosts need a secret, or anybody who reaches ", address.to_string(),
             " could join the run: make one with `gossamer secret`, and give it to all ranks as "
             "GOSSAMER_SECRET; or set comm.security=none in a network that you trust"));
}

MetRanks meet_ranks(const MeetingOptions& meeting, const RankRecord& own) {
  const Met in_store = meet_in_store(meeting, own.text());
  std::vector<RankRecord> arrived;
  for (const std::string& text : in_store.records) {
    arrived.push_back(RankRecord::of(text, static_cast<int>(arrived.size())));
    require_closed(meeting, arrived.back().endpoint.address());
  }
  MetRanks met;
  for (const std::size_t i : order_of(arrived)) {
    if (static_cast<int>(i) == in_store.rank) met.rank = static_cast<int>(met.records.size());
    met.records.push_back(arrived[i]);
  }
  require_reachable(met.records);
  return met;
}

}  // namespace gossamer::tcp
