// The mesh of processes that are joined by TCP; all of them are in this one.

#include "comm/tcp/mesh.hpp"

#include "test/base/thrown.hpp"
#include "test/comm/tcp/stranger.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace gossamer::tcp {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kRun = 7;

struct MeshOptions {
  std::uint64_t run = kRun;
  std::string secret = {};
  double silence_s = 20.0;
  double meeting_s = 20.0;
};

/// A mesh, and what it has heard and lost.
class Node {
 public:
  explicit Node(const MeshOptions& options = {}) {
    MeshConfig config{.address = asio::ip::address_v4::loopback(),
                      .run = options.run,
                      .silence_s = options.silence_s,
                      .meeting_s = options.meeting_s};
    if (!options.secret.empty()) config.tls = std::make_unique<TlsContext>(options.secret, "run");
    mesh = make_mesh(std::move(config));
    mesh->start({.heard =
                     [this](const std::string& from, std::string text) {
                       const std::lock_guard lock(mutex_);
                       heard_.emplace_back(from, std::move(text));
                     },
                 .met =
                     [this](const std::string& address) {
                       const std::lock_guard lock(mutex_);
                       met_.push_back(address);
                     },
                 .lost =
                     [this](const std::string& address, const std::string& reason) {
                       const std::lock_guard lock(mutex_);
                       lost_.push_back(address);
                       reasons_.push_back(reason);
                     }});
  }

  [[nodiscard]] const std::string& address() const { return mesh->address(); }
  [[nodiscard]] std::uint16_t port() const { return mesh_endpoint(address()).port(); }
  using Texts = std::vector<std::pair<std::string, std::string>>;
  [[nodiscard]] Texts heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }
  [[nodiscard]] std::vector<std::string> lost() {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

  [[nodiscard]] std::vector<std::string> reasons() {
    const std::lock_guard lock(mutex_);
    return reasons_;
  }
  [[nodiscard]] std::vector<std::string> met() {
    const std::lock_guard lock(mutex_);
    return met_;
  }

 private:
  std::mutex mutex_;
  Texts heard_;                       // guarded by mutex_
  std::vector<std::string> lost_;     // likewise
  std::vector<std::string> reasons_;  // likewise
  std::vector<std::string> met_;      // likewise

 public:
  /// Goes first: its thread writes the others.
  std::unique_ptr<membership::Mesh> mesh;
};

/// Waits until it is so; false if it does not come to that.
template <class Is>
bool comes_to(const Is& is) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!is() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(milliseconds(1));
  return is();
}

TEST(Mesh, DeliversTextsInOrder) {
  for (const char* secret : {"", "the secret of this run"}) {
    Node a({.secret = secret});
    Node b({.secret = secret});
    Node::Texts expected;
    for (int i = 0; i < 300; ++i) {
      const auto length = static_cast<std::size_t>(i % 50 == 7 ? 900'000 : 1 + i);
      expected.emplace_back(a.address(), std::string(length, static_cast<char>('a' + i % 26)));
      a.mesh->send(b.address(), expected.back().second);
    }
    b.mesh->send(a.address(), "back");
    EXPECT_TRUE(comes_to([&] { return b.heard().size() == expected.size(); }));
    EXPECT_EQ(b.heard(), expected);
    EXPECT_TRUE(comes_to([&] { return a.heard() == Node::Texts{{b.address(), "back"}}; }));
    EXPECT_TRUE(a.lost().empty());
    EXPECT_TRUE(b.lost().empty());
  }
}

TEST(Mesh, TellsBothOfTheEnd) {
  Node a;
  Node b;
  auto c = std::make_unique<Node>();
  const std::string gone = c->address();
  for (Node* node : {&a, &b}) {
    node->mesh->send(gone, "here");
    node->mesh->watch(gone);
  }
  a.mesh->send(b.address(), "here");
  EXPECT_TRUE(comes_to([&] { return c->heard().size() == 2 && b.heard().size() == 1; }));
  c.reset();
  const std::vector<std::string> lost{gone};
  EXPECT_TRUE(comes_to([&] { return a.lost() == lost && b.lost() == lost; }));
  // Whoever drops another is not told.
  a.mesh->drop(b.address());
  EXPECT_TRUE(comes_to([&] { return b.lost().size() == 2; }));
  EXPECT_EQ(b.lost().back(), a.address());
  EXPECT_EQ(a.lost(), lost);
  // They never hear of each other again.
  a.mesh->send(b.address(), "again");
  b.mesh->send(a.address(), "again");
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(b.heard().size(), 1U);
  EXPECT_TRUE(a.heard().empty());
}

TEST(Mesh, LosesWhoIsGoneBeforeItHasConnected) {
  Node a;
  std::string gone;
  {
    const Node b;
    gone = b.address();
  }
  a.mesh->watch(gone);
  a.mesh->watch("no address");
  EXPECT_TRUE(comes_to([&] { return a.lost().size() == 2; }));
}

/// The other one thinks that a sign of life every two seconds is enough.
TEST(Mesh, LosesWhoFallsSilent) {
  Node a({.silence_s = 0.5});
  Node b({.silence_s = 100.0});
  b.mesh->send(a.address(), "here");
  EXPECT_TRUE(comes_to([&] { return a.heard().size() == 1; }));
  EXPECT_TRUE(comes_to([&] { return a.lost() == std::vector<std::string>{b.address()}; }));
  EXPECT_TRUE(comes_to([&] { return b.lost() == std::vector<std::string>{a.address()}; }));
}

TEST(Mesh, LosesWhoDoesNotAnswer) {
  Node a({.meeting_s = 0.2});
  // Takes connections, and says nothing.
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  const std::string silent = mesh_address(acceptor.local_endpoint(), "word");
  a.mesh->watch(silent);
  EXPECT_TRUE(comes_to([&] { return a.lost() == std::vector<std::string>{silent}; }));
}

TEST(Mesh, KeepsWhoHasNothingToSay) {
  Node a({.silence_s = 2.0});
  Node b({.silence_s = 2.0});
  a.mesh->watch(b.address());
  std::this_thread::sleep_for(milliseconds(4'000));
  EXPECT_TRUE(a.lost().empty());
  EXPECT_TRUE(b.lost().empty());
  a.mesh->send(b.address(), "still here");
  EXPECT_TRUE(comes_to([&] { return b.heard().size() == 1; }));
}

/// Of a stranger that connects to the process `to`, and says that it is the process `from`.
Frame hello(std::uint64_t run, const Node& to, const std::string& from = "127.0.0.1 1 word") {
  return {.kind = FrameKind::kHello,
          .key = {.number = address_number(from)},
          .offset = address_number(to.address()),
          .address = run};
}

std::string framed(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(text.size() >> (8U * i)));
  return bytes + text;
}

TEST(Mesh, RefusesStrangers) {
  Node a({.silence_s = 4.0});
  Node b({.silence_s = 4.0});
  a.mesh->send(b.address(), "before");
  Stranger chatters(a.port());
  chatters.send("GET / HTTP/1.1\r\n\r\n and much more than the first frame of a rank has");
  EXPECT_TRUE(chatters.is_refused());
  Stranger has_another_run(a.port());
  has_another_run.send(hello(kRun + 1, a));
  EXPECT_TRUE(has_another_run.is_refused());
  Stranger says_too_much(a.port());
  says_too_much.send(hello(kRun, a));
  says_too_much.send(Frame{.kind = FrameKind::kBeat});
  says_too_much.send(framed(std::string(5'000, 'x')));
  EXPECT_TRUE(says_too_much.is_refused());
  Stranger says_nothing(a.port());
  says_nothing.send(hello(kRun, a));
  says_nothing.send(Frame{.kind = FrameKind::kBeat});
  EXPECT_TRUE(says_nothing.is_refused());
  a.mesh->send(b.address(), "after");
  EXPECT_TRUE(comes_to([&] { return b.heard().size() == 2; }));
  EXPECT_TRUE(a.lost().empty());
}

/// Without a secret nothing else tells one process from another. A pretender cannot push out the
/// one that is there.
TEST(Mesh, KeepsTheFirstOfAnAddress) {
  Node a;
  Node b;
  a.mesh->send(b.address(), "first");
  b.mesh->send(a.address(), "first");
  EXPECT_TRUE(comes_to([&] { return a.heard().size() == 1 && b.heard().size() == 1; }));
  Stranger pretends(a.port());
  pretends.send(hello(kRun, a, b.address()));
  pretends.send(Frame{.kind = FrameKind::kBeat});
  pretends.send(framed(b.address()) + framed("wrong"));
  EXPECT_TRUE(pretends.is_refused());
  b.mesh->send(a.address(), "second");
  EXPECT_TRUE(comes_to([&] { return a.heard().size() == 2; }));
  EXPECT_EQ(a.heard().back().second, "second");
  EXPECT_TRUE(a.lost().empty());
}

/// As where somebody redirects a connection.
TEST(Mesh, IsNotTakenForAnotherProcess) {
  Node a;
  Node b;
  Node c;
  // A connection to the process b ends at c.
  const std::string redirected =
      mesh_address({asio::ip::address_v4::loopback(), c.port()}, "the word of b");
  a.mesh->send(redirected, "for b");
  a.mesh->send(c.address(), "for c");
  EXPECT_TRUE(comes_to([&] { return c.heard().size() == 1; }));
  EXPECT_EQ(c.heard()[0].second, "for c");
  // Who says one address in the hello, and another one next, is neither.
  Stranger pretends(a.port());
  pretends.send(hello(kRun, a));
  pretends.send(Frame{.kind = FrameKind::kBeat});
  pretends.send(framed(b.address()) + framed("wrong"));
  EXPECT_TRUE(pretends.is_refused());
  b.mesh->send(a.address(), "right");
  EXPECT_TRUE(comes_to([&] { return a.heard().size() == 1; }));
  EXPECT_EQ(a.heard()[0].second, "right");
}

/// They have greeted, and never say their address.
TEST(Mesh, MeetsAPeerAmongManyStrangers) {
  Node a({.silence_s = 60.0, .meeting_s = 60.0});
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(std::make_unique<Stranger>(a.port()));
    strangers.back()->send(hello(kRun, a, "127.0.0.1 1 " + std::to_string(i)));
    strangers.back()->send(Frame{.kind = FrameKind::kBeat});
  }
  // One of which it knows, and one of which it does not.
  Node known({.silence_s = 60.0, .meeting_s = 60.0});
  a.mesh->watch(known.address());
  known.mesh->send(a.address(), "here");
  EXPECT_TRUE(comes_to([&] { return a.heard().size() == 1; }));
  EXPECT_TRUE(a.lost().empty());
  Node unknown({.silence_s = 60.0, .meeting_s = 60.0});
  unknown.mesh->send(a.address(), "here");
  strangers.clear();
  EXPECT_TRUE(comes_to([&] { return a.heard().size() == 2; }));
  EXPECT_TRUE(unknown.lost().empty());
  EXPECT_TRUE(a.lost().empty());
}

TEST(Mesh, SaysWhenBothConnectionsAreThere) {
  Node a;
  Node b;
  a.mesh->watch(b.address());
  EXPECT_TRUE(comes_to([&] {
    return a.met() == std::vector<std::string>{b.address()} &&
           b.met() == std::vector<std::string>{a.address()};
  }));
}

TEST(Mesh, SaysWhichDirectionIsMissing) {
  Node a({.meeting_s = 0.5});
  // It connects, and cannot be reached where it says that it listens.
  const std::string elsewhere = "127.0.0.1 1 word";
  Stranger unreachable(a.port());
  unreachable.send(hello(kRun, a, elsewhere));
  unreachable.send(Frame{.kind = FrameKind::kBeat});
  unreachable.send(framed(elsewhere));
  EXPECT_TRUE(comes_to([&] { return a.lost() == std::vector<std::string>{elsewhere}; }));
  EXPECT_EQ(a.reasons().at(0), "it has ended; this process has not connected to it");
  EXPECT_TRUE(a.met().empty());
  // A process that never connects in return.
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  const std::string silent = mesh_address(acceptor.local_endpoint(), "word");
  a.mesh->watch(silent);
  EXPECT_TRUE(comes_to([&] { return a.lost().size() == 2; }));
  EXPECT_CONTAINS(a.reasons().at(1), "no connection within 0.5 s");
}

TEST(Mesh, NamesTheLimitOfOpenFiles) {
  Node a({.meeting_s = 1.0});
  Node b;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // What is open stays open.
  const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  a.mesh->watch(b.address());
  const bool is_lost = comes_to([&] { return a.lost().size() == 1; });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(is_lost);
  EXPECT_CONTAINS(a.reasons()[0], "files and connections open; ulimit -n raises that");
}

TEST(Mesh, NeedsTheSecret) {
  Node a({.secret = "the secret of this run", .silence_s = 1.0});
  Node b({.secret = "another secret", .silence_s = 1.0, .meeting_s = 1.0});
  b.mesh->send(a.address(), "let me in");
  EXPECT_TRUE(comes_to([&] { return b.lost().size() == 1; }));
  EXPECT_TRUE(a.heard().empty());
  EXPECT_TRUE(a.lost().empty());
}

}  // namespace
}  // namespace gossamer::tcp
