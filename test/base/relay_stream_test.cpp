#include "gossamer/core/base/relay_stream.hpp"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "gossamer/core/base/host_stream.hpp"

namespace gossamer {
namespace {

TEST(RelayStream, KeepsTheOrderAcrossStreams) {
  ThreadStream first;
  ThreadStream second;
  RelayStream relay(first);
  // Not guarded: the order of the streams is all that keeps the threads apart.
  std::vector<int> order;
  std::atomic<bool> go = false;
  relay.run([&go] {
    while (!go) std::this_thread::yield();
  });
  std::vector<int> expected;
  for (int i = 0; i < 100; ++i) {
    relay.follow(i % 3 == 0 ? first : second);
    relay.run([&order, i] { order.push_back(i); });
    expected.push_back(i);
  }
  go = true;
  relay.synchronize();
  EXPECT_EQ(order, expected);
}

TEST(RelayStream, NoticesWhatEndedAStreamThatItHasLeft) {
  ThreadStream first;
  ThreadStream second;
  RelayStream relay(first);
  std::atomic<bool> go = false;
  relay.run([&go] {
    while (!go) std::this_thread::yield();
    throw std::runtime_error("broken");
  });
  relay.follow(second);
  relay.check();
  go = true;
  EXPECT_THROW(relay.synchronize(), std::runtime_error);
  EXPECT_THROW(relay.check(), std::runtime_error);
  EXPECT_THROW(relay.record(), std::runtime_error);
}

TEST(RelayStream, WaitsForAllStreamsWhenOneHasEnded) {
  ThreadStream first;
  ThreadStream second;
  RelayStream relay(first);
  std::atomic<bool> go = false;
  relay.run([&go] {
    while (!go) std::this_thread::yield();
    throw std::runtime_error("broken");
  });
  relay.follow(second);
  std::atomic<bool> over = false;
  relay.run([&over] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    over = true;
  });
  relay.follow(first);
  go = true;
  EXPECT_THROW(relay.synchronize(), std::runtime_error);
  EXPECT_TRUE(over);
}

TEST(RelayStream, StaysOnItsDevice) {
  ThreadStream first;
  ThreadStream elsewhere({DeviceType::kCuda, 1});
  RelayStream relay(first);
  EXPECT_THROW(relay.follow(elsewhere), std::logic_error);
  relay.follow(first);
  EXPECT_EQ(&relay.current(), &first);
}

}  // namespace
}  // namespace gossamer
