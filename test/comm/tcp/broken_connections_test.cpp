// Data connections that break, die in silence, or are slow, while ranks exchange. The ranks are
// threads of this process, so a saboteur finds their sockets among the process's descriptors.

#include "test/comm/tcp/tcp_ranks.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/text.hpp"
#include "comm/options.hpp"

namespace gossamer::tcp {
namespace {

using std::chrono::milliseconds;

/// Data connections alone have a limit for what is not acknowledged.
bool is_data_connection(int fd) {
  unsigned limit_ms = 0;
  socklen_t size = sizeof limit_ms;
  return getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, &size) == 0 && limit_ms > 0;
}

/// Does something to every end of a data connection. Returns how many there are.
int for_each_end(const std::function<void(int fd)>& sabotage) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = -1;
    if (!parse_whole(entry.path().filename().string(), fd) || !is_data_connection(fd)) continue;
    sabotage(fd);
    ++count;
  }
  return count;
}

/// The peer gets a reset, as a firewall sends one for a connection that it does not know. The
/// thread sanitizer would take connect() for the beginning of a new descriptor.
void reset(int fd) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  syscall(SYS_connect, fd, &nobody, sizeof nobody);
}

/// Nothing arrives any more, and nobody tells.
void silence(int fd) {
  std::array<sock_filter, 1> nothing = {{{BPF_RET | BPF_K, 0, 0, 0}}};
  const sock_fprog program{static_cast<unsigned short>(nothing.size()), nothing.data()};
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

/// The kernel sends 375 kilobytes in a second.
void slow_down(int fd) {
  constexpr std::uint64_t kBytesPerSecond = 375'000;
  EXPECT_EQ(
      setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &kBytesPerSecond, sizeof kBytesPerSecond), 0);
}

/// Two ranks exchange and sum until told to end. Every block has the number of its round, and is
/// overwritten as soon as it may be.
class Exchanges {
 public:
  Exchanges(std::string secret, int num_streams, double timeout_s = 16.0) {
    LaunchOptions options{.timeout_s = timeout_s, .log_level = LogLevel::kError};
    options.meeting.secret = std::move(secret);
    options.meeting.num_streams = num_streams;
    options.meeting.reads_memory = false;
    ranks_ = std::jthread([this, options] {
      codes_ = launch_ranks(2, options, [this](Communicator& communicator, const World&) {
        return work(communicator);
      });
      is_over_ = true;
    });
  }

  /// Returns when the ranks have made so many more rounds.
  void go_on(std::int64_t num_rounds) {
    const std::int64_t goal = num_rounds_ + num_rounds;
    while (num_rounds_ < goal && !is_over_) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_FALSE(is_over_) << "the ranks have ended";
  }
  /// Whether the ranks have ended, which they do before end() only by a failure.
  [[nodiscard]] bool is_over() const { return is_over_; }
  std::vector<int> end() {
    is_ending_ = true;
    ranks_.join();
    return codes_;
  }

 private:
  int work(Communicator& communicator) {
    std::vector<float> mine(250'000);
    std::vector<float> theirs(mine.size());
    std::vector<float> sum(mine.size());
    std::vector<float> ends(1);
    for (float round = 1.0F;; ++round) {
      std::ranges::fill(mine, round);
      const int peer = 1 - communicator.rank();
      Request exchange =
          communicator.exchange(peer, block_of(std::span(mine)), block_of(std::span(theirs)), {});
      Request total =
          communicator.all_reduce_sum(block_of(std::span(mine)), block_of(std::span(sum)), {});
      exchange.wait();
      total.wait();
      if (std::ranges::count(theirs, round) != std::ssize(theirs)) return 1;
      if (std::ranges::count(sum, 2.0F * round) != std::ssize(sum)) return 2;
      std::ranges::fill(mine, -1.0F);
      std::vector<float> ending = {is_ending_ ? 1.0F : 0.0F};
      communicator.all_reduce_sum(block_of(std::span(ending)), block_of(std::span(ends)), {})
          .wait();
      if (ends[0] > 0.0F) return 0;
      if (communicator.rank() == 0) ++num_rounds_;
    }
  }

  std::atomic<std::int64_t> num_rounds_ = 0;
  std::atomic<bool> is_ending_ = false;
  std::atomic<bool> is_over_ = false;
  std::vector<int> codes_;
  std::jthread ranks_;
};

/// In plain connections and in TLS, with one connection and with several.
class BrokenConnections : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Of, BrokenConnections, testing::Values("plain", "tls"),
                         [](const auto& kind) { return kind.param; });

std::string secret_of(const std::string& kind) {
  return kind == "tls" ? "the secret of the ranks of these tests" : "";
}

TEST_P(BrokenConnections, AreMadeAnewAndLoseNothing) {
  for (const int num_streams : {1, 3}) {
    Exchanges exchanges(secret_of(GetParam()), num_streams);
    exchanges.go_on(3);
    int num_cut = 0;
    while (num_cut < 24 && !exchanges.is_over()) {
      // Also in the middle of a round.
      num_cut += for_each_end(num_cut % 3 == 0 ? [](int fd) { shutdown(fd, SHUT_RDWR); } : reset);
      std::this_thread::sleep_for(milliseconds(7));
    }
    exchanges.go_on(3);
    EXPECT_EQ(exchanges.end(), (std::vector{0, 0}));
  }
}

TEST_P(BrokenConnections, AreNoticedWhenTheyDieInSilence) {
  Exchanges exchanges(secret_of(GetParam()), 2);
  exchanges.go_on(3);
  EXPECT_EQ(for_each_end(silence), 4);
  exchanges.go_on(3);
  EXPECT_EQ(exchanges.end(), (std::vector{0, 0}));
}

/// A round takes at least two times the time limit.
TEST(SlowConnections, OutlastTheTimeLimit) {
  Exchanges exchanges("", 1, /*timeout_s=*/2.0);
  exchanges.go_on(1);
  EXPECT_EQ(for_each_end(slow_down), 2);
  exchanges.go_on(1);
  EXPECT_EQ(exchanges.end(), (std::vector{0, 0}));
}

TEST_P(BrokenConnections, AreProbedWhileTheyAreIdle) {
  Exchanges exchanges(secret_of(GetParam()), 1);
  exchanges.go_on(1);
  for_each_end([](int fd) {
    using Limit = std::array<int, 3>;
    for (const auto& [level, option, most] :
         {Limit{SOL_SOCKET, SO_KEEPALIVE, 1}, Limit{IPPROTO_TCP, TCP_KEEPIDLE, 60},
          Limit{IPPROTO_TCP, TCP_KEEPINTVL, 60}}) {
      int value = 0;
      socklen_t size = sizeof value;
      EXPECT_EQ(getsockopt(fd, level, option, &value, &size), 0);
      EXPECT_GT(value, 0);
      EXPECT_LE(value, most);
    }
  });
  EXPECT_EQ(exchanges.end(), (std::vector{0, 0}));
}

}  // namespace
}  // namespace gossamer::tcp
