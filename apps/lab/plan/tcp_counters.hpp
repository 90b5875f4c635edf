#pragma once
// What TCP has counted on the connections of this process. For measurements: the counters say how
// many connections carry messages, and how many segments were lost on the way.
//
// Thread safe. A kernel without these counters gives none (tcp_figures.hpp).

#include <cstdint>
#include <map>

namespace gossamer::apps {

struct TcpCounters {
  /// Bytes of payload that were sent, those that were sent again included.
  std::int64_t bytes = 0;
  /// Segments with payload that were sent, those that were sent again included.
  std::int64_t num_segments = 0;
  /// Segments that were sent again.
  std::int64_t num_resent = 0;
};

/// The counters of all open connections, by file descriptor.
using TcpSnapshot = std::map<int, TcpCounters>;
TcpSnapshot tcp_snapshot();

/// What all connections together have sent in a while.
struct TcpTraffic {
  TcpCounters sum = {};
  /// The connections that have carried messages, and not only words about them.
  int num_streams = 0;

  /// Adds what was sent. Of the streams, takes the larger number.
  TcpTraffic& operator+=(const TcpTraffic& more);
};
TcpTraffic traffic_between(const TcpSnapshot& before, const TcpSnapshot& after);

}  // namespace gossamer::apps
