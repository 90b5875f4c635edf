#pragma once
// Reads the counters that the kernel keeps for the TCP connections of this process. Measurements
// learn from them how many connections carry messages, and how many segments were lost on the way.
//
// Thread safe. Where the kernel has no such counters (tcp_figures.hpp), a snapshot is empty.

#include <cstdint>
#include <map>

namespace gossamer::apps {

struct TcpCounters {
  /// Bytes of payload that were sent, retransmissions included.
  std::int64_t bytes = 0;
  /// Segments with payload that were sent, retransmissions included.
  std::int64_t num_segments = 0;
  /// Segments that were retransmitted.
  std::int64_t num_resent = 0;
};

/// The counters of all open connections, by file descriptor.
using TcpSnapshot = std::map<int, TcpCounters>;
TcpSnapshot tcp_snapshot();

/// What all connections together sent between two snapshots.
struct TcpTraffic {
  TcpCounters sum = {};
  /// The number of connections that carried more than 1/256 of all bytes. The other connections
  /// carry only control words.
  int num_streams = 0;

  /// Adds the counters of `more`. Keeps the larger of the two numbers of streams.
  TcpTraffic& operator+=(const TcpTraffic& more);
};
TcpTraffic traffic_between(const TcpSnapshot& before, const TcpSnapshot& after);

}  // namespace gossamer::apps
