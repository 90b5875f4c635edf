#include "base/relay_stream.hpp"

#include "test/support/thread_stream.hpp"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

TEST(RelayStream, KeepsTheOrderAcrossStreams) {
  ThreadStream first;
  ThreadStream second;
  RelayStream relay(first);
  // No lock guards this: only the order of the streams keeps the threads apart.
  std::vector<int> order;
  std::atomic<bool> go = false;
  relay.run([&go] {
    while (!go) std::this_thread::yield();
  });
  std::vector<int> expected;
  for (int i = 0; i < 100; ++i) {
    relay.set_current(i % 3 == 0 ? first : second);
    relay.run([&order, i] { order.push_back(i); });
    expected.push_back(i);
  }
  go = true;
  relay.synchronize();
  EXPECT_EQ(order, expected);
}

/// A relay on its second stream. Its first stream ends with an error as soon as `go` is true.
struct BrokenBehind {
  BrokenBehind() {
    relay.run([this] {
      while (!go) std::this_thread::yield();
      throw std::runtime_error("broken");
    });
    relay.set_current(second);
  }

  std::atomic<bool> go = false;
  ThreadStream first;
  ThreadStream second;
  RelayStream relay{first};
};

TEST(RelayStream, NoticesWhatEndedAStreamThatItHasLeft) {
  BrokenBehind broken;
  broken.relay.check();
  broken.go = true;
  EXPECT_THROW(broken.relay.synchronize(), std::runtime_error);
  EXPECT_THROW(broken.relay.check(), std::runtime_error);
  EXPECT_THROW(broken.relay.record(), std::runtime_error);
}

TEST(RelayStream, WaitsForAllStreamsWhenOneHasEnded) {
  std::atomic<bool> over = false;
  BrokenBehind broken;
  broken.relay.run([&over] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    over = true;
  });
  broken.relay.set_current(broken.first);
  broken.go = true;
  EXPECT_THROW(broken.relay.synchronize(), std::runtime_error);
  EXPECT_TRUE(over);
}

TEST(RelayStream, StaysOnItsDevice) {
  ThreadStream first;
  ThreadStream elsewhere({DeviceType::kCuda, 1});
  RelayStream relay(first);
  EXPECT_THROW(relay.set_current(elsewhere), std::logic_error);
  relay.set_current(first);
  EXPECT_EQ(&relay.current(), &first);
}

}  // namespace
}  // namespace gossamer
