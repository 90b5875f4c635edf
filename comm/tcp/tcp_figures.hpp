#pragma once
// Reads the figures that the kernel keeps for a TCP connection.
//
// Thread safety: a function without state. Errors: none.

#include <cstdint>
#include <optional>

namespace gossamer::tcp {

struct TcpFigures {
  double round_trip_s = 0.0;
  /// Counts since the connection was made: bytes and segments of payload that were sent,
  /// retransmissions included, and segments that were retransmitted.
  std::int64_t num_bytes = 0;
  std::int64_t num_segments = 0;
  std::int64_t num_resent = 0;
  /// Since the connection was made: seconds in which the buffers of either end held it back.
  double held_back_s = 0.0;
};

/// The figures of the descriptor `fd`. Nothing if `fd` is no socket of TCP, or if the kernel does
/// not count (Linux counts since 4.19).
std::optional<TcpFigures> tcp_figures(int fd);

}  // namespace gossamer::tcp
