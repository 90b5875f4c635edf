#include "apps/lab/plan/tcp_counters.hpp"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/text.hpp"
#include "comm/tcp/tcp_figures.hpp"

namespace gossamer::apps {
namespace {

/// A connection that carries messages carries more than this part of all bytes.
constexpr std::int64_t kLeastPart = 256;

}  // namespace

TcpSnapshot tcp_snapshot() {
  TcpSnapshot snapshot;
  std::error_code in_vain;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", in_vain)) {
    int descriptor = 0;
    if (!parse_whole(entry.path().filename().string(), descriptor)) continue;
    if (const auto figures = tcp::tcp_figures(descriptor)) {
      snapshot[descriptor] = {.bytes = figures->num_bytes,
                              .num_segments = figures->num_segments,
                              .num_resent = figures->num_resent};
    }
  }
  return snapshot;
}

TcpTraffic& TcpTraffic::operator+=(const TcpTraffic& more) {
  sum.bytes += more.sum.bytes;
  sum.num_segments += more.sum.num_segments;
  sum.num_resent += more.sum.num_resent;
  num_streams = std::max(num_streams, more.num_streams);
  return *this;
}

TcpTraffic traffic_between(const TcpSnapshot& before, const TcpSnapshot& after) {
  TcpTraffic traffic;
  std::vector<std::int64_t> bytes;
  for (const auto& [descriptor, now] : after) {
    const auto found = before.find(descriptor);
    const TcpCounters earlier = found == before.end() ? TcpCounters() : found->second;
    // Another connection has the descriptor of one that has been closed.
    if (now.bytes < earlier.bytes) continue;
    bytes.push_back(now.bytes - earlier.bytes);
    traffic.sum.bytes += bytes.back();
    traffic.sum.num_segments += now.num_segments - earlier.num_segments;
    traffic.sum.num_resent += now.num_resent - earlier.num_resent;
  }
  traffic.num_streams = static_cast<int>(std::ranges::count_if(
      bytes, [&](std::int64_t each) { return each * kLeastPart > traffic.sum.bytes; }));
  return traffic;
}

}  // namespace gossamer::apps
