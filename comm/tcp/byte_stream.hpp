#pragma once
// A connection as a stream of bytes, in plain TCP or in TLS. Nothing here blocks: a call that
// cannot go on returns, and the caller waits for the socket.
//
// Protocol: shake_hands() until it returns true, then read() and write(). A write that has moved
// nothing is repeated with the same bytes first.
//
// Thread safety: one thread at a time. Errors: ConnectionEnded when the peer has closed the
// connection or the network has broken it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "base/fork.hpp"
#include "comm/tcp/asio.hpp"
#include "comm/tcp/tcp_figures.hpp"
#include "comm/tcp/tls.hpp"

namespace gossamer::tcp {

class ConnectionEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A program that this one starts does not get the socket, and so does not hold it open; nor does a
/// child of fork() while the result lives.
[[nodiscard]] ClosedInChildren keep_from_children(int fd);
/// The kernel probes an idle connection every 30 seconds, so that firewalls and the like do not
/// forget it, and ends it when nothing answers for another 30 seconds.
void keep_alive(int fd);
/// The kernel ends the connection when the other host has been silent for `seconds`, at the
/// earliest after one second, although this host has sent something or probed it.
void limit_silence(int fd, double seconds);

class ByteStream {
 public:
  /// `tls` may be null; then the stream is plain. Sets three options of the socket: no delay,
  /// keepalive after 30 seconds, and the congestion control `cubic`. So firewalls between the hosts
  /// do not forget the connection, and hosts with another default lose nothing.
  ByteStream(asio::ip::tcp::socket socket, const TlsContext* tls, Role role);
  ByteStream(ByteStream&&) = default;
  /// An assignment would close the old socket while children still get /dev/null for its number.
  ByteStream& operator=(ByteStream&&) = delete;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  ~ByteStream() = default;

  [[nodiscard]] asio::ip::tcp::socket& socket() { return socket_; }

  /// Moves the handshake of TLS on; true when it is over.
  bool shake_hands();
  /// The event for which an unfinished handshake waits.
  [[nodiscard]] bool waits_to_write() const { return waits_to_write_; }
  /// Reads up to `place.size()` > 0 bytes. 0: none are here at the moment.
  std::size_t read(std::span<std::byte> place);
  using Parts = std::array<std::span<const std::byte>, 2>;
  /// Writes from the beginning of the first part on. Returns the number of bytes written; 0: the
  /// connection takes none at the moment. A connection that ends after some bytes have left
  /// returns their number, and the next call throws.
  std::size_t write(const Parts& parts);
  /// The connection ends when the other host has acknowledged nothing for so many seconds although
  /// bytes are under way. This counts the time in which the peer's process is stopped, too, so it
  /// is for connections alone that are made anew.
  void limit_unacknowledged(double seconds);
  /// Bytes that the kernel holds beyond the bytes that it may send at the moment.
  void limit_unsent(int bytes);
  /// Makes the kernel send packets one by one (pacing), and not a whole window when
  /// acknowledgements come together. Between far hosts with traffic in both directions
  /// acknowledgements come together, because they wait behind data. Without pacing, bursts then
  /// leave the link idle in between.
  void pace();
  /// Zeros where the kernel tells nothing.
  [[nodiscard]] TcpFigures figures() {
    return tcp_figures(socket_.native_handle()).value_or(TcpFigures());
  }
  /// In TLS: the number of records that the present key has protected.
  [[nodiscard]] std::uint64_t num_records() const { return num_records_; }
  /// Ends the stream: the peer reads all written bytes, and then the end.
  void end_writing();
  void close();

 private:
  /// Adds the bytes that TLS has taken to `total`. Returns whether it has taken all of them.
  bool write_records(std::span<const std::byte> bytes, std::size_t& total);
  /// Ends the call of TLS that has returned `result`. Returns whether it can go on later.
  bool can_go_on(int result);
  /// After every record: changes the key before it has protected more than it may (RFC 8446,
  /// section 5.5).
  void renew_key();

  asio::ip::tcp::socket socket_;
  /// Ends before the socket does.
  ClosedInChildren closed_in_children_;
  TlsContext::Ssl ssl_;
  bool waits_to_write_ = false;
  std::uint64_t num_records_ = 0;
  /// Why the connection has ended in a write that had moved bytes before.
  std::optional<std::string> write_error_;
};

}  // namespace gossamer::tcp
