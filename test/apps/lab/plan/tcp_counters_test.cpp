// What TCP counts on connections of this process.

#include "apps/lab/plan/tcp_counters.hpp"

#include <string>
#include <utility>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/file_descriptor.hpp"

namespace gossamer::apps {
namespace {

/// Both ends of a connection within this machine.
std::pair<FileDescriptor, FileDescriptor> connection() {
  const FileDescriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const place = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener.get(), place, length), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), place, &length), 0);
  FileDescriptor client(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(connect(client.get(), place, length), 0);
  return {std::move(client), FileDescriptor(accept(listener.get(), nullptr, nullptr))};
}

void pass(const FileDescriptor& from, const FileDescriptor& to, std::size_t bytes) {
  std::string text(bytes, 'x');
  ASSERT_EQ(send(from.get(), text.data(), bytes, 0), static_cast<ssize_t>(bytes));
  ASSERT_EQ(recv(to.get(), text.data(), bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
}

TEST(TcpCounters, AreOfTheBytesThatWereSent) {
  const auto [left, right] = connection();
  const auto [other_left, other_right] = connection();
  const TcpSnapshot before = tcp_snapshot();
  if (!before.contains(left.get())) GTEST_SKIP() << "this kernel does not count";
  pass(left, right, 50'000);
  const TcpTraffic one = traffic_between(before, tcp_snapshot());
  EXPECT_EQ(one.sum.bytes, 50'000);
  EXPECT_GT(one.sum.num_segments, 0);
  EXPECT_EQ(one.sum.num_resent, 0);
  EXPECT_EQ(one.num_streams, 1);
  pass(other_left, other_right, 50'000);
  // A word is no message.
  pass(right, left, 20);
  const TcpTraffic both = traffic_between(before, tcp_snapshot());
  EXPECT_EQ(both.sum.bytes, 100'020);
  EXPECT_EQ(both.num_streams, 2);
  TcpTraffic total = one;
  total += both;
  EXPECT_EQ(total.sum.bytes, 150'020);
  EXPECT_EQ(total.num_streams, 2);
}

TEST(TcpCounters, CountConnectionsFromTheirBegin) {
  const TcpSnapshot before = tcp_snapshot();
  const auto [left, right] = connection();
  if (!tcp_snapshot().contains(left.get())) GTEST_SKIP() << "this kernel does not count";
  pass(left, right, 1000);
  EXPECT_EQ(traffic_between(before, tcp_snapshot()).sum.bytes, 1000);
}

}  // namespace
}  // namespace gossamer::apps
