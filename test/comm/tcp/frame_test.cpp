// Frames as bytes, and bytes that are no frames.

#include "comm/tcp/frame.hpp"

#include "test/base/thrown.hpp"

#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace gossamer::tcp {
namespace {

constexpr std::uint64_t kMax64 = std::numeric_limits<std::uint64_t>::max();

TEST(Frame, ReturnsAsItWas) {
  for (std::uint8_t kind = 1; kind <= 11; ++kind) {
    const Frame frame{
        .kind = static_cast<FrameKind>(kind),
        .reads_memory = kind % 2 == 0,
        .epoch = 0x01020304U,
        .key = {.group = 0xfffefdfcU, .use = 23, .number = kMax64 - 5, .part = 0x80000001U},
        .offset = kMax64 - 1,
        .length = kind == 3 ? kMaxPieceBytes : (kind == 7 ? kMaxNewsBytes : 0),
        .address = 0x1122334455667788U};
    const Frame back = decode(encode(frame));
    EXPECT_EQ(back.kind, frame.kind);
    EXPECT_EQ(back.reads_memory, frame.reads_memory);
    EXPECT_EQ(back.epoch, frame.epoch);
    EXPECT_EQ(back.key, frame.key);
    EXPECT_EQ(back.offset, frame.offset);
    EXPECT_EQ(back.length, frame.length);
    EXPECT_EQ(back.address, frame.address);
  }
}

TEST(Frame, HasTheBytesOfThisVersionOnEveryMachine) {
  const Header header = encode({.kind = FrameKind::kPiece, .key = {.group = 0x0a0b}, .length = 3});
  EXPECT_EQ(std::memcmp(header.data(), "GSMR\x02\x03", 6), 0);
  EXPECT_EQ(header[12], std::byte{0x0b});
  EXPECT_EQ(header[13], std::byte{0x0a});
  EXPECT_EQ(header[40], std::byte{3});
}

TEST(Frame, RefusesLengthsThatItsKindCannotHave) {
  for (std::uint8_t kind = 1; kind <= 11; ++kind) {
    for (const std::uint64_t length : {kMaxPieceBytes + 1, kMax64}) {
      const Header header = encode({.kind = static_cast<FrameKind>(kind), .length = length});
      EXPECT_THROW(decode(header), FrameError) << int{kind};
    }
  }
  EXPECT_THROW(decode(encode({.kind = FrameKind::kBeat, .length = 1})), FrameError);
  EXPECT_THROW(decode(encode({.kind = FrameKind::kNews, .length = kMaxNewsBytes + 1})), FrameError);
}

TEST(Frame, RefusesOtherProgramsAndVersions) {
  Header header = encode({.kind = FrameKind::kHello});
  header[4] = std::byte{1};
  EXPECT_CONTAINS(what_of<FrameError>([&] { decode(header); }), "version 1");
  std::memcpy(header.data(), "GET / HT", 8);
  EXPECT_CONTAINS(what_of<FrameError>([&] { decode(header); }), "no frame of gossamer");
}

/// Of any bytes, a frame comes out whose length is allowed, or a FrameError.
TEST(Frame, ReadsAnyBytes) {
  Random random(1, 0);
  std::int64_t num_read = 0;
  for (int i = 0; i < 200'000; ++i) {
    Header header = encode({.kind = FrameKind::kNews, .length = kMaxNewsBytes});
    // Most of them begin rightly, so that the other fields count.
    const std::int64_t num_changes = 1 + random.below(4);
    for (std::int64_t change = 0; change < num_changes; ++change) {
      const auto place = static_cast<std::size_t>(random.below(kHeaderBytes));
      header.at(place) = static_cast<std::byte>(random.below(256));
    }
    try {
      const Frame frame = decode(header);
      ++num_read;
      EXPECT_LE(frame.length, kMaxPieceBytes);
    } catch (const FrameError&) {
    }
  }
  EXPECT_GT(num_read, 1'000);
  EXPECT_LT(num_read, 199'000);
}

}  // namespace
}  // namespace gossamer::tcp
