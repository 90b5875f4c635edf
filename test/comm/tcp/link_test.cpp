// A Link whose peer is this test: what it sends, what it refuses, and that nothing a peer sends
// makes it write where it should not.

#include "comm/tcp/link.hpp"

#include "test/base/forked_child.hpp"
#include "test/base/thrown.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/random.hpp"

namespace gossamer::tcp {
namespace {

using std::chrono::milliseconds;
using Socket = asio::ip::tcp::socket;

constexpr std::size_t kMaxEarly = 2'000;
constexpr MessageKey kFirst = {.number = 1};
constexpr MessageKey kSecond = {.number = 2};

/// A link and the other ends of its connections.
class Ends {
  // First, so that it goes last.
  asio::io_context io_;

 public:
  /// With `with_data` both connections, else none.
  explicit Ends(bool with_data = true) {
    link_.emplace(
        Link::Config{.num_streams = 1, .max_early = kMaxEarly},
        Link::Hooks{.moved = [] {},
                    .news = [this](const Frame&, const std::string& text) { news.push_back(text); },
                    .stepped = [this](std::int64_t num) { num_steps = num; },
                    .lost = [this](const std::string& reason) { lost = reason; },
                    .connect = [](int) { ADD_FAILURE() << "the other end connects"; },
                    .broken = [](int) { ADD_FAILURE() << "the other end connects"; }});
    if (!with_data) return;
    control.emplace(connect(0));
    data.emplace(connect(1));
  }
  Link& link() { return *link_; }
  void end_link() { link_.reset(); }

  /// The peer's end of a new connection; if it does not stay, it has ended before the link gets it.
  Socket connect(std::uint32_t index, bool stays = true) {
    asio::ip::tcp::acceptor acceptor(io_, {asio::ip::address_v4::loopback(), 0});
    Socket theirs(io_);
    theirs.connect(acceptor.local_endpoint());
    if (!stays) theirs.close();
    adopt(ByteStream(acceptor.accept(), nullptr, Role::kAccepts),
          {.kind = FrameKind::kHello, .key = {.part = index}});
    return theirs;
  }
  /// Data connection 1 once more, by a peer that has read so many bytes.
  Socket connect_again(std::uint32_t attempt, std::uint64_t num_read) {
    asio::ip::tcp::acceptor acceptor(io_, {asio::ip::address_v4::loopback(), 0});
    Socket theirs(io_);
    theirs.connect(acceptor.local_endpoint());
    adopt(ByteStream(acceptor.accept(), nullptr, Role::kAccepts),
          {.kind = FrameKind::kHello, .key = {.group = attempt, .part = 1}, .offset = num_read});
    run();
    return theirs;
  }
  void adopt(ByteStream stream, const Frame& hello) {
    link_->meet(static_cast<int>(hello.key.part), &hello, answer);
    link_->adopt(std::move(stream), hello);
  }

  /// Until nothing moves any more.
  void run() {
    for (int num_idle = 0; num_idle < 3;) {
      io_.restart();
      num_idle = io_.poll() > 0 ? 0 : num_idle + 1;
    }
  }
  void send(Socket& socket, std::span<const std::byte> bytes) {
    asio::error_code ignored;
    asio::write(socket, asio::buffer(bytes.data(), bytes.size()), ignored);
    run();
  }
  void send(Socket& socket, const Frame& frame) { send(socket, encode(frame)); }
  /// What the link has sent.
  std::vector<std::byte> take(Socket& socket) {
    run();
    std::vector<std::byte> all(std::size_t{1} << 20U);
    asio::error_code nothing;
    socket.non_blocking(true);
    const std::size_t count = socket.read_some(asio::buffer(all), nothing);
    socket.non_blocking(false);
    all.resize(nothing ? 0 : count);
    return all;
  }

  std::optional<Socket> control;
  std::optional<Socket> data;
  std::vector<std::string> news;
  std::int64_t num_steps = -1;
  std::string lost;
  /// The link's last hello.
  Frame answer;

 private:
  std::optional<Link> link_;
};

Frame first_frame(const std::vector<std::byte>& bytes) {
  return decode(std::span(bytes).first<kHeaderBytes>());
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Whether the other end is closed, behind what has been sent. Waits for it for a long time.
bool has_ended(Socket& socket) {
  std::array<char, 4096> bytes{};
  pollfd polled{socket.native_handle(), POLLIN, 0};
  while (poll(&polled, 1, 60'000) == 1) {
    if (read(socket.native_handle(), bytes.data(), bytes.size()) <= 0) return true;
  }
  return false;
}

TEST(Link, EndsForItsPeerWhileAChildOfForkLives) {
  Ends ends;
  const ForkedChild child(ForkedChild::kLives);
  ends.end_link();
  EXPECT_TRUE(has_ended(*ends.control));
  EXPECT_TRUE(has_ended(*ends.data));
  EXPECT_TRUE(child.lives());
}

TEST(Link, SendsNothingBeforeTheReceiverIsReady) {
  Ends ends;
  const std::vector<float> values = {1, 2, 3};
  const auto message =
      ends.link().messages().post_send(kFirst, {values.data(), 3, DType::kFloat32});
  EXPECT_TRUE(ends.take(*ends.data).empty());
  EXPECT_FALSE(message->check());
  ends.send(*ends.control, {.kind = FrameKind::kReady, .key = kFirst, .offset = 12});
  const std::vector<std::byte> sent = ends.take(*ends.data);
  ASSERT_EQ(sent.size(), kHeaderBytes + 12);
  EXPECT_EQ(std::vector(sent.begin() + kHeaderBytes, sent.end()), bytes_of(values));
  EXPECT_TRUE(message->check());
}

TEST(Link, KeepsWhatItsPeerIsReadyForUntilItIsPosted) {
  Ends ends;
  ends.send(*ends.control, {.kind = FrameKind::kReady, .key = kSecond, .offset = 0});
  EXPECT_TRUE(ends.take(*ends.data).empty());
  const auto message = ends.link().messages().post_send(kSecond, {nullptr, 0, DType::kFloat32});
  EXPECT_EQ(ends.take(*ends.data).size(), kHeaderBytes);
  EXPECT_TRUE(message->check());
}

TEST(Link, NamesBlocksOfDifferentSizes) {
  Ends ends;
  const std::vector<float> values(3);
  const auto message =
      ends.link().messages().post_send(kFirst, {values.data(), 3, DType::kFloat32});
  ends.send(*ends.control, {.kind = FrameKind::kReady, .key = kFirst, .offset = 8});
  EXPECT_THROW(static_cast<void>(message->check()), CommError);
}

TEST(Link, TakesPiecesInAnyOrder) {
  Ends ends;
  std::vector<float> values(2);
  const auto message = ends.link().messages().post_receive(kFirst, block_of(std::span(values)));
  const Frame ready = first_frame(ends.take(*ends.control));
  EXPECT_EQ(ready.kind, FrameKind::kReady);
  EXPECT_EQ(ready.offset, 8U);
  for (const std::uint64_t place : {1U, 0U}) {
    const std::vector<float> value = {static_cast<float>(place) + 1.0F};
    ends.send(*ends.data,
              {.kind = FrameKind::kPiece, .key = kFirst, .offset = 4 * place, .length = 4});
    EXPECT_FALSE(message->check());
    ends.send(*ends.data, bytes_of(value));
  }
  EXPECT_TRUE(message->check());
  EXPECT_EQ(values, (std::vector{1.0F, 2.0F}));
}

TEST(Link, RefusesPiecesThatNobodyHasAskedFor) {
  for (const Frame& piece :
       {Frame{.kind = FrameKind::kPiece, .key = kSecond, .length = 4},
        Frame{.kind = FrameKind::kPiece, .key = kFirst, .offset = 4, .length = 8},
        Frame{.kind = FrameKind::kPiece, .key = kFirst, .offset = ~std::uint64_t{0}, .length = 4},
        Frame{.kind = FrameKind::kPiece, .key = kFirst},
        Frame{.kind = FrameKind::kPiece, .epoch = 1, .key = kFirst, .length = 4},
        Frame{.kind = FrameKind::kBeat}}) {
    Ends ends;
    std::vector<float> values(2);
    const auto message = ends.link().messages().post_receive(kFirst, block_of(std::span(values)));
    ends.send(*ends.data, piece);
    // The control connection may have an explanation; a second later there is none.
    ends.link().tick(1.0, 60.0, 60.0);
    EXPECT_NE(ends.lost, "");
    EXPECT_EQ(values, (std::vector{0.0F, 0.0F}));
  }
}

TEST(Link, EndsWithTheControlConnectionButNotAfterAGoodbye) {
  for (const bool says_goodbye : {false, true}) {
    Ends ends;
    ends.send(*ends.control, {.kind = FrameKind::kBeat});
    if (says_goodbye) ends.send(*ends.control, {.kind = FrameKind::kGoodbye});
    ends.control->close();
    ends.run();
    EXPECT_EQ(ends.lost.empty(), says_goodbye);
    EXPECT_EQ(ends.link().has_left(), says_goodbye);
  }
}

/// The peer dies right after it has connected.
TEST(Link, BearsConnectionsThatHaveEndedAlready) {
  Ends dead_control(/*with_data=*/false);
  dead_control.connect(0, /*stays=*/false);
  EXPECT_NE(dead_control.lost, "");
  Ends dead_data(/*with_data=*/false);
  dead_data.connect(1, /*stays=*/false);
  EXPECT_NE(dead_data.link().broken(), "");
  EXPECT_EQ(dead_data.lost, "");
  dead_data.control.emplace(dead_data.connect(0));
  EXPECT_EQ(first_frame(dead_data.take(*dead_data.control)).kind, FrameKind::kBroken);
}

/// The peer has read the header and four bytes when its connection breaks. The block changes before
/// the next connection is there, because the message is over.
TEST(Link, GoesOnWhereABrokenConnectionHasStopped) {
  Ends ends;
  std::vector<float> values = {1, 2, 3};
  ends.send(*ends.control, {.kind = FrameKind::kReady, .key = kFirst, .offset = 12});
  const auto message =
      ends.link().messages().post_send(kFirst, {values.data(), 3, DType::kFloat32});
  ASSERT_EQ(ends.take(*ends.data).size(), kHeaderBytes + 12);
  EXPECT_TRUE(message->check());
  values = {7, 7, 7};
  ends.data->close();
  ends.run();
  EXPECT_NE(ends.link().broken(), "");
  const Frame broken = first_frame(ends.take(*ends.control));
  EXPECT_EQ(broken.kind, FrameKind::kBroken);
  EXPECT_EQ(broken.key.part, 1U);
  ends.data.emplace(ends.connect_again(5, kHeaderBytes + 4));
  EXPECT_EQ(ends.take(*ends.data), bytes_of(std::vector<float>{2, 3}));
  EXPECT_EQ(ends.lost, "");
}

/// What comes late on the old connection is not read, for the peer sends it again.
TEST(Link, ReadsOnWhereABrokenConnectionHasStopped) {
  Ends ends;
  std::vector<float> values(2);
  const auto message = ends.link().messages().post_receive(kFirst, block_of(std::span(values)));
  ends.send(*ends.data, {.kind = FrameKind::kPiece, .key = kFirst, .length = 8});
  ends.send(*ends.data, bytes_of(std::vector<float>{1}));
  Socket old = std::move(*ends.data);
  asio::error_code ignored;
  const std::vector<std::byte> late = bytes_of(std::vector<float>{9});
  asio::write(old, asio::buffer(late.data(), late.size()), ignored);
  ends.data.emplace(ends.connect_again(2, 0));
  EXPECT_EQ(ends.answer.offset, kHeaderBytes + 4);
  EXPECT_EQ(ends.answer.key.group, 2U);
  EXPECT_FALSE(message->check());
  ends.send(*ends.data, bytes_of(std::vector<float>{2}));
  EXPECT_TRUE(message->check());
  EXPECT_EQ(values, (std::vector{1.0F, 2.0F}));
}

/// The greeting of an earlier attempt may end late.
TEST(Link, TakesTheLatestConnectionAlone) {
  Ends ends;
  const Frame first{.kind = FrameKind::kHello, .key = {.group = 2, .part = 1}};
  const Frame second{.kind = FrameKind::kHello, .key = {.group = 3, .part = 1}};
  Frame answer;
  ends.link().meet(1, &first, answer);
  ends.link().meet(1, &second, answer);
  asio::io_context io;
  ends.link().adopt(ByteStream(Socket(io), nullptr, Role::kAccepts), first);
  std::vector<float> values(2);
  const auto message = ends.link().messages().post_receive(kFirst, block_of(std::span(values)));
  ends.data.emplace(ends.connect_again(4, 0));
  ends.send(*ends.data, {.kind = FrameKind::kPiece, .key = kFirst, .length = 8});
  ends.send(*ends.data, bytes_of(std::vector<float>{1, 2}));
  EXPECT_TRUE(message->check());
  EXPECT_EQ(ends.lost, "");
}

TEST(Link, RefusesACountOfBytesThatCannotBe) {
  Ends ends;
  ends.send(*ends.control, {.kind = FrameKind::kRead, .key = {.part = 1}, .offset = 1});
  EXPECT_NE(ends.lost, "");
  Ends others;
  EXPECT_THROW(others.connect_again(2, 1), FrameError);
}

TEST(Link, TouchesNoBlockAfterItIsAbandoned) {
  Ends ends;
  std::vector<float> values(2);
  const auto message = ends.link().messages().post_receive(kFirst, block_of(std::span(values)));
  ends.link().abandon();
  ends.send(*ends.data, {.kind = FrameKind::kPiece, .key = kFirst, .length = 8});
  ends.send(*ends.data, bytes_of(std::vector<float>{1, 2}));
  EXPECT_EQ(values, (std::vector{0.0F, 0.0F}));
  EXPECT_FALSE(message->check());
  EXPECT_EQ(ends.lost, "");
}

TEST(Link, RefusesMorePiecesThanAMessageHas) {
  Ends ends;
  std::vector<float> values(2);
  ends.link().messages().post_receive(kFirst, block_of(std::span(values)));
  for (int i = 0; i < 2; ++i) {
    ends.send(*ends.data, {.kind = FrameKind::kPiece, .key = kFirst, .offset = 4, .length = 4});
    ends.send(*ends.data, bytes_of(std::vector<float>{1}));
  }
  ends.send(*ends.data, {.kind = FrameKind::kPiece, .key = kFirst, .length = 4});
  ends.link().tick(1.0, 60.0, 60.0);
  EXPECT_NE(ends.lost, "");
}

TEST(Link, GivesASignOfLifeAndMissesOne) {
  Ends ends;
  ends.link().tick(1.5, 1.0, 3.0);
  EXPECT_EQ(first_frame(ends.take(*ends.control)).kind, FrameKind::kBeat);
  ends.link().tick(1.0, 1.0, 3.0);
  EXPECT_EQ(ends.lost, "");
  ends.send(*ends.control, {.kind = FrameKind::kBeat});
  ends.link().tick(2.9, 1.0, 3.0);
  EXPECT_EQ(ends.lost, "");
  ends.link().tick(0.2, 1.0, 3.0);
  EXPECT_CONTAINS(ends.lost, "no sign of life for 3 s");
}

TEST(Link, TellsStepsWithASignOfLife) {
  Ends ends;
  ends.link().tick(1.5, 1.0, 3.0, 12);
  EXPECT_EQ(first_frame(ends.take(*ends.control)).offset, 13U);
  ends.send(*ends.control, {.kind = FrameKind::kBeat, .offset = 10});
  EXPECT_EQ(ends.num_steps, 9);
  ends.send(*ends.control, {.kind = FrameKind::kBeat});
  EXPECT_EQ(ends.num_steps, 9);
  ends.send(*ends.control, {.kind = FrameKind::kReady, .key = kFirst, .offset = 4});
  EXPECT_EQ(ends.num_steps, -1);
}

/// Signs of life are no progress; what belongs to messages is, in either direction.
TEST(Link, TellsSinceWhenNothingHasMoved) {
  Ends ends;
  std::vector<float> values(2);
  ends.link().messages().post_receive(kFirst, block_of(std::span(values)));
  ends.link().messages().post_send(kFirst, {values.data(), 2, DType::kFloat32});
  ends.link().tick(1.5, 60.0, 60.0);
  ends.send(*ends.control, {.kind = FrameKind::kBeat});
  EXPECT_EQ(ends.link().idle_s(), 1.5);
  ends.send(*ends.control, {.kind = FrameKind::kReady, .key = kSecond, .offset = 8});
  EXPECT_EQ(ends.link().idle_s(), 0.0);
  ends.link().tick(1.5, 60.0, 60.0);
  ends.send(*ends.data, {.kind = FrameKind::kPiece, .key = kFirst, .length = 8});
  EXPECT_EQ(ends.link().idle_s(), 0.0);
  ends.link().tick(1.5, 60.0, 60.0);
  ends.send(*ends.data, bytes_of(std::vector<float>{1}));
  EXPECT_EQ(ends.link().idle_s(), 0.0);
  ends.link().tick(1.5, 60.0, 60.0);
  ends.link().messages().post_send(kSecond, {values.data(), 2, DType::kFloat32});
  EXPECT_EQ(ends.link().idle_s(), 0.0);
}

TEST(Link, DoesNotRememberMoreThanAPeerMayBeAhead) {
  Ends ends;
  std::vector<std::byte> many;
  for (std::uint32_t part = 0; part <= kMaxEarly; ++part) {
    const Header header = encode({.kind = FrameKind::kReady, .key = {.part = part}, .offset = 1});
    many.insert(many.end(), header.begin(), header.end());
  }
  for (std::size_t first = 0; first < many.size(); first += 50'000) {
    ends.send(*ends.control,
              std::span(many).subspan(first, std::min<std::size_t>(50'000, many.size() - first)));
  }
  EXPECT_CONTAINS(ends.lost, "ahead by more than");
}

/// A frame as a peer might send it, with some of its bytes changed.
std::vector<std::byte> any_frame(Random& random) {
  const MessageKey key{.number = static_cast<std::uint64_t>(random.below(4)),
                       .part = static_cast<std::uint32_t>(random.below(2))};
  const Frame frame{.kind = static_cast<FrameKind>(1 + random.below(11)),
                    .key = key,
                    .offset = static_cast<std::uint64_t>(random.below(3) * 200),
                    .length = static_cast<std::uint64_t>(random.below(3) * 200),
                    .address = static_cast<std::uint64_t>(random.below(2))};
  Header header = encode(frame);
  if (random.below(3) == 0) {
    header.at(static_cast<std::size_t>(random.below(kHeaderBytes))) =
        static_cast<std::byte>(random.below(256));
  }
  std::vector<std::byte> bytes(header.begin(), header.end());
  bytes.resize(bytes.size() + static_cast<std::size_t>(random.below(2) * 200), std::byte{7});
  return bytes;
}

/// Whatever a peer sends: only blocks that wait are written, and the addresses sanitizer is
/// content.
TEST(Link, BearsAnythingThatAPeerSends) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Random random(seed, 1);
    Ends ends;
    std::vector<std::vector<std::byte>> memory(6, std::vector<std::byte>(400, std::byte{1}));
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const MessageKey key{.number = i / 2, .part = static_cast<std::uint32_t>(i % 2)};
      const Block block{memory[i].data(), 400, DType::kUInt8, {}};
      i < 3 ? ends.link().messages().post_receive(key, block)
            : ends.link().messages().post_send(key, block);
    }
    for (int i = 0; i < 40 && ends.lost.empty(); ++i) {
      ends.send(random.below(2) == 0 ? *ends.control : *ends.data, any_frame(random));
      ends.take(*ends.control);
      ends.take(*ends.data);
      ends.link().messages().fetch();
    }
    for (std::size_t i = 3; i < memory.size(); ++i) {
      EXPECT_EQ(memory[i], std::vector<std::byte>(400, std::byte{1})) << seed;
    }
  }
}

}  // namespace
}  // namespace gossamer::tcp
