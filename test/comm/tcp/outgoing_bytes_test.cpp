#include "comm/tcp/outgoing_bytes.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace gossamer::tcp {
namespace {

/// A message of so many bytes with consecutive values.
MessagePtr message_of(std::vector<std::byte>& memory, std::size_t bytes) {
  memory.resize(bytes);
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>(i % 251);
  auto message = std::make_shared<Message>();
  message->bytes = static_cast<std::int64_t>(bytes);
  message->from = memory.data();
  return message;
}

Frame piece_of(std::uint64_t offset, std::uint64_t length) {
  return {.kind = FrameKind::kPiece, .offset = offset, .length = length};
}

/// Writes at most `count` bytes, as a connection does.
OutgoingBytes::Step write(OutgoingBytes& out, std::size_t count, std::vector<std::byte>& written) {
  const std::size_t before = written.size();
  for (const auto& part : out.rest()) {
    const std::size_t taken = std::min(part.size(), count - (written.size() - before));
    written.insert(written.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(taken));
  }
  return out.advance(written.size() - before);
}

TEST(OutgoingBytes, CountsAPieceOnce) {
  std::vector<std::byte> memory;
  std::vector<std::byte> written;
  const MessagePtr message = message_of(memory, 10);
  OutgoingBytes out;
  out.append(message, piece_of(0, 4));
  EXPECT_FALSE(write(out, kHeaderBytes + 3, written).message);
  const OutgoingBytes::Step step = write(out, 9, written);
  EXPECT_EQ(step.message, message);
  EXPECT_EQ(step.bytes, 4);
  EXPECT_TRUE(step.is_new);
  out.go_back_to(kHeaderBytes);
  const OutgoingBytes::Step again = write(out, 9, written);
  EXPECT_FALSE(again.message);
  EXPECT_FALSE(again.is_new);
  EXPECT_TRUE(out.is_at_end());
}

TEST(OutgoingBytes, KeepsWhatHasNotArrivedWhenTheMessageIsOver) {
  std::vector<std::byte> memory;
  std::vector<std::byte> written;
  const MessagePtr message = message_of(memory, 4);
  OutgoingBytes out;
  for (const std::uint64_t offset : {0U, 2U}) {
    out.append(message, piece_of(offset, 2));
    write(out, kHeaderBytes + 2, written);
  }
  out.release(*message);
  EXPECT_EQ(message.use_count(), 1);
  std::ranges::fill(memory, std::byte{99});
  out.go_back_to(kHeaderBytes + 1);
  std::vector<std::byte> again;
  while (!out.is_at_end()) write(out, kHeaderBytes + 2, again);
  EXPECT_EQ(again.front(), std::byte{1});
  EXPECT_EQ(again[again.size() - 2], std::byte{2});
  EXPECT_EQ(again.back(), std::byte{3});
}

TEST(OutgoingBytes, RefusesPositionsThatThePeerCannotHave) {
  std::vector<std::byte> memory;
  std::vector<std::byte> written;
  OutgoingBytes out;
  out.append(message_of(memory, 4), piece_of(0, 4));
  write(out, 20, written);
  EXPECT_THROW(out.acknowledge(21), FrameError);
  out.acknowledge(10);
  EXPECT_THROW(out.go_back_to(9), FrameError);
  EXPECT_THROW(out.go_back_to(21), FrameError);
  EXPECT_NO_THROW(out.go_back_to(10));
}

/// Whatever breaks, and whenever: the reader gets every byte once, in order.
TEST(OutgoingBytes, CarriesOneStreamOverManyConnections) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed, 3);
    const auto below = [&random](std::int64_t limit) {
      return static_cast<std::size_t>(random.below(limit));
    };
    OutgoingBytes out;
    std::vector<std::byte> expected;
    std::vector<std::byte> read;
    std::vector<std::byte> under_way;
    for (int i = 0; i < 60; ++i) {
      std::vector<std::byte> memory;
      const MessagePtr message = message_of(memory, 1 + below(300));
      const Frame piece = piece_of(0, memory.size());
      const Header header = encode(piece);
      expected.insert(expected.end(), header.begin(), header.end());
      expected.insert(expected.end(), memory.begin(), memory.end());
      while (!out.is_at_end()) write(out, 1 + below(200), under_way);
      out.append(message, piece);
      while (!out.is_at_end()) {
        write(out, 1 + below(200), under_way);
        const std::size_t arrived = below(static_cast<std::int64_t>(under_way.size()) + 1);
        const auto end = under_way.begin() + static_cast<std::ptrdiff_t>(arrived);
        read.insert(read.end(), under_way.begin(), end);
        under_way.erase(under_way.begin(), end);
        if (below(3) == 0) out.acknowledge(read.size());
        if (below(5) > 0) continue;
        under_way.clear();
        out.go_back_to(read.size());
      }
    }
    read.insert(read.end(), under_way.begin(), under_way.end());
    EXPECT_EQ(read, expected) << seed;
  }
}

}  // namespace
}  // namespace gossamer::tcp
