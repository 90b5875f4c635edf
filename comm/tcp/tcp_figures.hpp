#pragma once
// What the kernel tells of a TCP connection.
//
// Thread safety: a function without state. Errors: none.

#include <cstdint>

namespace gossamer::tcp {

struct TcpFigures {
  double round_trip_s = 0.0;
  /// Since the connection was made: packets that were sent again, and seconds in which the buffers
  /// of either end held the connection back.
  std::uint64_t num_sent_again = 0;
  double held_back_s = 0.0;
};

/// Of the socket `fd`; zeros where the kernel tells nothing.
TcpFigures tcp_figures(int fd);

}  // namespace gossamer::tcp
