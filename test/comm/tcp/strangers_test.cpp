// Strangers connect to ranks that exchange all the while. The ranks go on, their memory and their
// log stay small, and no stranger gets in.

#include "test/base/thrown.hpp"
#include "test/comm/tcp/stranger.hpp"
#include "test/comm/tcp/tcp_ranks.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "comm/backends.hpp"
#include "comm/tcp/byte_stream.hpp"
#include "comm/tcp/listener.hpp"
#include "comm/tcp/tls.hpp"

namespace gossamer::tcp {
namespace {

using std::chrono::milliseconds;

constexpr const char* kSecret = "the secret of the ranks of these tests";

/// The port on which a rank listens, from its record.
std::uint16_t port_of(MemoryStore& store, int rank) {
  const std::string record =
      store.get("run/record/" + std::to_string(rank), std::chrono::seconds(20));
  std::istringstream in(record);
  std::string host;
  std::string address;
  int port = 0;
  in >> host >> address >> port;
  return static_cast<std::uint16_t>(port);
}

/// Looks at names alone, for other threads use the descriptors meanwhile.
int num_sockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with("socket:")) ++count;
  }
  return count;
}

/// Two ranks that exchange until they are told to end.
class Training {
 public:
  explicit Training(std::string secret) {
    LaunchOptions options{.timeout_s = 20.0};
    options.meeting.secret = std::move(secret);
    options.meeting.reads_memory = false;
    for (int rank = 0; rank < 2; ++rank) {
      threads_.emplace_back([this, rank, options] {
        codes_[static_cast<std::size_t>(rank)] =
            launch("tcp", rank_options(store_, rank, 2, options),
                   [this](Communicator& communicator, const World&) { return work(communicator); });
      });
    }
    go_on();
  }
  ~Training() { end(); }

  [[nodiscard]] std::uint16_t port() { return port_of(*store_, 0); }
  /// Returns when the ranks have made some more rounds.
  void go_on() {
    const std::int64_t goal = num_rounds_ + 20;
    while (num_rounds_ < goal && codes_[0] < 0) std::this_thread::sleep_for(milliseconds(1));
    ASSERT_LT(codes_[0], 0) << "the ranks have ended";
  }
  /// Ends the ranks. Returns their exit codes.
  std::vector<int> end() {
    is_ending_ = true;
    threads_.clear();
    return {codes_[0], codes_[1]};
  }

 private:
  int work(Communicator& communicator) {
    std::vector<float> mine(20'000, 1.0F);
    std::vector<float> sum(mine.size());
    while (true) {
      mine[0] = is_ending_ ? 1.0F : 0.0F;
      communicator.all_reduce_sum(block_of(std::span(mine)), block_of(std::span(sum)), {}).wait();
      if (sum.back() != 2.0F) return 1;
      if (sum.front() > 0.0F) return 0;
      if (communicator.rank() == 0) ++num_rounds_;
    }
  }

  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::atomic<std::int64_t> num_rounds_ = 0;
  std::atomic<bool> is_ending_ = false;
  std::array<std::atomic<int>, 2> codes_ = {-1, -1};
  std::vector<std::jthread> threads_;
};

/// A stranger of each kind does its worst, again and again.
void expect_harmless(const std::string& secret, const std::function<void(std::uint16_t)>& attack) {
  testing::internal::CaptureStderr();
  {
    Training training(secret);
    const std::uint16_t port = training.port();
    const int num_before = num_sockets();
    for (int i = 0; i < 5; ++i) {
      attack(port);
      training.go_on();
    }
    EXPECT_LE(num_sockets(), num_before + static_cast<int>(Listener::kMaxGuests));
    EXPECT_EQ(training.end(), (std::vector{0, 0}));
  }
  // One line for one address in a minute.
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
  EXPECT_CONTAINS(log, "a connection from 127.0.0.1 is refused");
}

Frame hello_of_rank_1() { return {.kind = FrameKind::kHello, .key = {.number = 1}}; }

TEST(Strangers, SendGarbage) {
  expect_harmless(kSecret, [](std::uint16_t port) {
    Stranger stranger(port);
    stranger.send("GET / HTTP/1.1\r\nHost: rank\r\n\r\n");
    EXPECT_TRUE(stranger.is_refused());
  });
}

TEST(Strangers, SendRandomBytes) {
  Random random(7, 0);
  expect_harmless("", [&](std::uint16_t port) {
    for (int i = 0; i < 20; ++i) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(1 + random.below(200)));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
      // A hello that is right in most of its bytes.
      const Header hello = encode(hello_of_rank_1());
      std::copy_n(hello.begin(), std::min<std::size_t>(bytes.size(), 12), bytes.begin());
      Stranger stranger(port);
      stranger.send(bytes);
      if (bytes.size() >= kHeaderBytes) {
        EXPECT_TRUE(stranger.is_refused());
      }
    }
  });
}

TEST(Strangers, SayHelloWithoutTheSecret) {
  expect_harmless(kSecret, [](std::uint16_t port) {
    Stranger stranger(port);
    stranger.send(hello_of_rank_1());
    EXPECT_TRUE(stranger.is_refused());
  });
}

TEST(Strangers, HaveAnotherSecret) {
  const TlsContext tls("another secret than that of the ranks", "run");
  expect_harmless(kSecret, [&](std::uint16_t port) {
    asio::io_context io;
    asio::ip::tcp::socket socket(io);
    socket.connect({asio::ip::address_v4::loopback(), port});
    ByteStream stream(std::move(socket), &tls, Role::kConnects);
    const auto read = [&stream] {
      while (!stream.shake_hands()) std::this_thread::sleep_for(milliseconds(1));
      std::vector<std::byte> place(1);
      while (stream.read(place) == 0) std::this_thread::sleep_for(milliseconds(1));
    };
    EXPECT_THROW(read(), ConnectionEnded);
  });
}

TEST(Strangers, ComeFromAnotherEpochOrRun) {
  expect_harmless("", [](std::uint16_t port) {
    Frame stale = hello_of_rank_1();
    stale.epoch = 1;
    Frame other_run = hello_of_rank_1();
    other_run.address = 1;
    for (const Frame& hello : {stale, other_run}) {
      Stranger stranger(port);
      stranger.send(hello);
      EXPECT_TRUE(stranger.is_refused());
      EXPECT_EQ(stranger.receive(milliseconds(0)), "");
    }
  });
}

TEST(Strangers, LieAboutLengthsAndRanks) {
  expect_harmless("", [](std::uint16_t port) {
    std::vector<Frame> frames;
    for (int kind = 1; kind <= 11; ++kind) {
      frames.push_back({.kind = static_cast<FrameKind>(kind), .length = ~std::uint64_t{0}});
    }
    for (const std::uint64_t rank : {std::uint64_t{0}, std::uint64_t{2}, ~std::uint64_t{0}}) {
      frames.push_back({.kind = FrameKind::kHello, .key = {.number = rank}});
    }
    for (const std::uint32_t index : {std::uint32_t{65}, ~std::uint32_t{0}}) {
      frames.push_back({.kind = FrameKind::kHello, .key = {.number = 1, .part = index}});
    }
    for (const Frame& frame : frames) {
      Stranger stranger(port);
      stranger.send(frame);
      EXPECT_TRUE(stranger.is_refused());
    }
  });
}

/// Bytes that a rank has sent before open no door again.
TEST(Strangers, RepeatWhatTheyHaveHeard) {
  const TlsContext tls(kSecret, "run");
  expect_harmless(kSecret, [&](std::uint16_t port) {
    // The first flight of an honest rank, as it goes over the wire.
    asio::io_context io;
    asio::ip::tcp::acceptor trap(io, {asio::ip::address_v4::loopback(), 0});
    asio::ip::tcp::socket honest(io);
    honest.connect(trap.local_endpoint());
    Stranger stranger(port);
    asio::ip::tcp::socket overheard = trap.accept();
    ByteStream stream(std::move(honest), &tls, Role::kConnects);
    stream.shake_hands();
    std::array<char, 4096> bytes{};
    const std::size_t count = overheard.read_some(asio::buffer(bytes));
    stranger.send(std::string_view(bytes.data(), count));
    stranger.send(std::string_view(bytes.data(), count));
    EXPECT_TRUE(stranger.is_refused());
  });
}

TEST(Strangers, AreAThousand) {
  expect_harmless(kSecret, [](std::uint16_t port) {
    std::vector<std::unique_ptr<Stranger>> strangers;
    const int num_before = num_sockets();
    for (int i = 0; i < 300; ++i) strangers.push_back(std::make_unique<Stranger>(port));
    // Some go long before their time is over: the oldest, or those for which the allowance is used
    // up. Both ends of each connection are in this process. One more may just have come.
    const int most = num_before + 300 + static_cast<int>(Listener::kMaxGuests) + 1;
    const auto end = std::chrono::steady_clock::now() + milliseconds(5'000);
    while (num_sockets() > most && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_LE(num_sockets(), most);
  });
}

/// A bare listener and a stranger who goes away when it has its answer.
TEST(Strangers, GiveUp) {
  asio::io_context io;
  int num_welcome = 0;
  Listener listener(io, asio::ip::address_v4::loopback());
  listener.start(nullptr, Logger(),
                 {.judge = [](const Frame& theirs) { return theirs; },
                  .welcome = [&](ByteStream, const Frame&) { ++num_welcome; }});
  std::jthread server([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) io.run_for(milliseconds(10));
  });
  for (const bool gives_up : {true, false}) {
    Stranger stranger(listener.port());
    stranger.send(hello_of_rank_1());
    EXPECT_EQ(stranger.receive(milliseconds(300)).size(), kHeaderBytes);
    if (!gives_up) stranger.send(Frame{.kind = FrameKind::kBeat});
    if (!gives_up) stranger.receive(milliseconds(300));
  }
  server.request_stop();
  server.join();
  EXPECT_EQ(num_welcome, 1);
  listener.close();
}

/// A bare listener, whose patience is short.
TEST(Strangers, AreSlow) {
  asio::io_context io;
  Listener listener(io, asio::ip::address_v4::loopback(), milliseconds(200));
  listener.start(nullptr, Logger(),
                 {.judge = [](const Frame& theirs) { return theirs; },
                  .welcome = [](ByteStream, const Frame&) { ADD_FAILURE(); }});
  std::jthread server([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) io.run_for(milliseconds(10));
  });
  Stranger stranger(listener.port());
  const Header hello = encode(hello_of_rank_1());
  // Sent byte by byte, the hello would take 56 times as long as each pause.
  for (const std::byte byte : hello) {
    stranger.send(std::span(&byte, 1));
    if (stranger.is_refused(milliseconds(50))) break;
  }
  EXPECT_TRUE(stranger.is_refused(milliseconds(0)));
  server.request_stop();
  server.join();
  listener.close();
}

}  // namespace
}  // namespace gossamer::tcp
