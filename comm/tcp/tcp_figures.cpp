// Compiled alone: the kernel's header has more figures than the C library's, and both cannot be
// included together.

#include "comm/tcp/tcp_figures.hpp"

#include <cstddef>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace gossamer::tcp {

std::optional<TcpFigures> tcp_figures(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  if (length < offsetof(tcp_info, tcpi_bytes_sent) + sizeof info.tcpi_bytes_sent) {
    return std::nullopt;
  }
  return TcpFigures{
      .round_trip_s = 1e-6 * static_cast<double>(info.tcpi_rtt),
      .num_bytes = static_cast<std::int64_t>(info.tcpi_bytes_sent),
      .num_segments = std::int64_t{info.tcpi_data_segs_out},
      .num_resent = std::int64_t{info.tcpi_total_retrans},
      .held_back_s = 1e-6 * static_cast<double>(info.tcpi_rwnd_limited + info.tcpi_sndbuf_limited)};
}

}  // namespace gossamer::tcp
