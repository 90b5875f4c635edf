#include "comm/tcp/byte_stream.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "base/text.hpp"

namespace gossamer::tcp {
namespace {

constexpr std::string_view kCongestionControl = "cubic";
/// Short, so that nothing waits long behind a queue that this process cannot see; long enough for a
/// worker that gets its core a little late.
constexpr int kUnsentBytes = 256 * 1024;
/// AES-GCM may protect 2^24.5 records with one key.
constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 23U;
constexpr std::size_t kRecordBytes = 16 * 1024;

/// Seconds without a byte after which the kernel probes the other host, seconds between two probes,
/// and how many may stay without an answer.
constexpr int kKeepaliveIdle = 30;
constexpr int kKeepalivePause = 10;
constexpr int kKeepaliveProbes = 3;

void set_number(int fd, int level, int option, int value) {
  // A kernel that lacks one of these options does without.
  setsockopt(fd, level, option, &value, sizeof value);
}

void limit_unacknowledged(int fd, double seconds) {
  set_number(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(1e3 * seconds));
}

[[noreturn]] void end(const asio::error_code& error) {
  if (error == asio::error::eof) throw ConnectionEnded("the other end has closed it");
  throw ConnectionEnded(error.message());
}

}  // namespace

ClosedInChildren keep_from_children(int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return ClosedInChildren(fd);
}

void keep_alive(int fd) {
  set_number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_number(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdle);
  set_number(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepalivePause);
  set_number(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
}

void limit_silence(int fd, double seconds) {
  const int between_probes = std::max(1, static_cast<int>(seconds / 2));
  set_number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_number(fd, IPPROTO_TCP, TCP_KEEPIDLE, between_probes);
  set_number(fd, IPPROTO_TCP, TCP_KEEPINTVL, between_probes);
  limit_unacknowledged(fd, seconds);
}

ByteStream::ByteStream(asio::ip::tcp::socket socket, const TlsContext* tls, Role role)
    : socket_(std::move(socket)) {
  asio::error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  const int fd = socket_.native_handle();
  closed_in_children_ = keep_from_children(fd);
  keep_alive(fd);
  // A kernel without one of these options works as well, only slower.
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCongestionControl.data(),
             static_cast<socklen_t>(kCongestionControl.size()));
  limit_unsent(kUnsentBytes);
  if (tls != nullptr) ssl_ = tls->connect(fd, role);
}

bool ByteStream::shake_hands() {
  if (!ssl_) return true;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1) return can_go_on(result);
  if (SSL_session_reused(ssl_.get()) != 1) {
    throw ConnectionEnded("the other end has not shown that it knows the run's secret");
  }
  return true;
}

std::size_t ByteStream::read(std::span<std::byte> place) {
  if (!ssl_) {
    asio::error_code error;
    const std::size_t count = socket_.read_some(asio::buffer(place.data(), place.size()), error);
    if (error == asio::error::would_block || error == asio::error::try_again) return 0;
    if (error) end(error);
    return count;
  }
  ERR_clear_error();
  std::size_t count = 0;
  const int result = SSL_read_ex(ssl_.get(), place.data(), place.size(), &count);
  if (result == 1) return count;
  can_go_on(result);
  return 0;
}

std::size_t ByteStream::write(const Parts& parts) {
  if (!ssl_) {
    asio::error_code error;
    const std::array buffers = {asio::buffer(parts[0].data(), parts[0].size()),
                                asio::buffer(parts[1].data(), parts[1].size())};
    const std::size_t count = socket_.write_some(buffers, error);
    if (error == asio::error::would_block || error == asio::error::try_again) return 0;
    if (error) end(error);
    return count;
  }
  if (write_error_) throw ConnectionEnded(*write_error_);
  std::size_t total = 0;
  try {
    for (const std::span<const std::byte> part : parts) {
      if (!write_records(part, total)) break;
    }
  } catch (const ConnectionEnded& error) {
    // The peer may have read the records that have left, so the caller has to count their bytes.
    if (total == 0) throw;
    write_error_ = error.what();
  }
  return total;
}

bool ByteStream::write_records(std::span<const std::byte> bytes, std::size_t& total) {
  while (!bytes.empty()) {
    ERR_clear_error();
    std::size_t written = 0;
    // Each call writes one record. Given more, OpenSSL sends the rest of the last call's record and
    // begins the next one. If the next one fails, OpenSSL tells of neither, and the peer has bytes
    // that this end has not counted.
    const std::size_t size = std::min(bytes.size(), kRecordBytes);
    const int result = SSL_write_ex(ssl_.get(), bytes.data(), size, &written);
    if (result != 1) return can_go_on(result);
    total += written;
    bytes = bytes.subspan(written);
    renew_key();
  }
  return true;
}

bool ByteStream::can_go_on(int result) {
  const int problem = errno;
  const int kind = SSL_get_error(ssl_.get(), result);
  waits_to_write_ = kind == SSL_ERROR_WANT_WRITE;
  if (waits_to_write_ || kind == SSL_ERROR_WANT_READ) return false;
  if (kind == SSL_ERROR_ZERO_RETURN) throw ConnectionEnded("the other end has closed it");
  if (kind == SSL_ERROR_SYSCALL) {
    if (problem == 0) throw ConnectionEnded("the other end has closed it");
    throw ConnectionEnded(std::system_category().message(problem));
  }
  const unsigned long code = ERR_get_error();
  if (ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    throw ConnectionEnded("the other end has closed it");
  }
  const char* const text = code == 0 ? nullptr : ERR_reason_error_string(code);
  throw ConnectionEnded(concat("TLS: ", text == nullptr ? "unknown error" : text));
}

void ByteStream::renew_key() {
  if (++num_records_ < kRecordsPerKey) return;
  // Refused while a record is under way; the next call asks again.
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) num_records_ = 0;
}

void ByteStream::limit_unsent(int bytes) {
  set_number(socket_.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, bytes);
}

void ByteStream::limit_unacknowledged(double seconds) {
  tcp::limit_unacknowledged(socket_.native_handle(), seconds);
}

void ByteStream::pace() {
  // The kernel paces a connection that has a limit, and this one is never reached.
  constexpr std::uint64_t kBytesPerSecond = std::uint64_t{1} << 40U;
  setsockopt(socket_.native_handle(), SOL_SOCKET, SO_MAX_PACING_RATE, &kBytesPerSecond,
             sizeof kBytesPerSecond);
}

void ByteStream::end_writing() {
  asio::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void ByteStream::close() {
  closed_in_children_.end();
  asio::error_code ignored;
  socket_.close(ignored);
}

}  // namespace gossamer::tcp
