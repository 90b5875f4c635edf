#include "comm/tcp/byte_stream.hpp"

#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "comm/tcp/tls.hpp"

namespace gossamer::tcp {
namespace {

constexpr std::size_t kRecordBytes = 16 * 1024;

/// Two ends of a connection in TLS, in this thread.
class TlsPair {
  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_{io_, {asio::ip::address_v4::loopback(), 0}};
  TlsContext tls_{"the secret of the ranks", "run"};

 public:
  TlsPair()
      : writer(connected(), &tls_, Role::kConnects), reader(accepted(), &tls_, Role::kAccepts) {
    bool is_over = false;
    while (!is_over) is_over = writer.shake_hands() & reader.shake_hands();
  }
  /// Writes so many bytes in one call, which the other end has read when this returns.
  void write(std::size_t count) {
    const std::vector<std::byte> bytes(count);
    std::vector<std::byte> place(count);
    std::size_t num_read = 0;
    EXPECT_EQ(writer.write({bytes, {}}), count);
    while (num_read < count) num_read += reader.read(place);
  }

  ByteStream writer;
  ByteStream reader;

 private:
  asio::ip::tcp::socket connected() {
    asio::ip::tcp::socket socket(io_);
    socket.connect(acceptor_.local_endpoint());
    socket.non_blocking(true);
    return socket;
  }
  asio::ip::tcp::socket accepted() {
    asio::ip::tcp::socket socket = acceptor_.accept();
    socket.non_blocking(true);
    return socket;
  }
};

TEST(ByteStream, CountsAFullRecordOnce) {
  TlsPair pair;
  pair.write(kRecordBytes);
  EXPECT_EQ(pair.writer.num_records(), 1U);
}

TEST(ByteStream, CountsEveryRecordOfAWrite) {
  TlsPair pair;
  pair.write(2 * kRecordBytes + 1);
  EXPECT_EQ(pair.writer.num_records(), 3U);
}

}  // namespace
}  // namespace gossamer::tcp
