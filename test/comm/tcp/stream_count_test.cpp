// The number of connections for links whose rate is a function of it.

#include "comm/tcp/stream_count.hpp"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

namespace gossamer::tcp {
namespace {

/// What a link gives to `num_streams` connections, in bytes per second.
using Rate = std::function<double(int num_streams)>;

/// The number of connections after `seconds` in which the link is busy.
int count_after(StreamCount& count, const Rate& rate, double seconds, bool is_held_back = true) {
  constexpr double kTick = 0.01;
  for (double time = 0.0; time < seconds; time += kTick) {
    if (count.add(kTick, static_cast<std::int64_t>(rate(count.wanted()) * kTick))) {
      count.judge(is_held_back);
    }
  }
  return count.wanted();
}

Rate shared_wire(double per_stream, double wire) {
  return [=](int num_streams) { return std::min(per_stream * num_streams, wire); };
}

StreamCount far_count() {
  StreamCount count(0);
  count.set_round_trip(50e-3);
  return count;
}

TEST(StreamCount, IsOneBetweenNearHosts) {
  StreamCount count(0);
  EXPECT_EQ(count.wanted(), 1);
  count.set_round_trip(0.2e-3);
  EXPECT_EQ(count_after(count, shared_wire(1e6, 1e9), 100.0), 1);
}

TEST(StreamCount, IsOneWhereNothingHoldsItBack) {
  StreamCount count = far_count();
  EXPECT_EQ(count_after(count, shared_wire(1e6, 1e9), 100.0, /*is_held_back=*/false), 1);
}

TEST(StreamCount, IsWhatTheUserSays) {
  StreamCount count(5);
  count.set_round_trip(150e-3);
  EXPECT_EQ(count_after(count, shared_wire(1e6, 1e9), 100.0), 5);
}

TEST(StreamCount, GrowsWhileThatHelps) {
  StreamCount count = far_count();
  // 25 connections fill the wire. 64 are the next number, and show that.
  EXPECT_EQ(count_after(count, shared_wire(1e6, 25e6), 60.0), 64);
  count = far_count();
  EXPECT_EQ(count_after(count, shared_wire(1e6, 3e6), 60.0), 16);
}

TEST(StreamCount, StaysNearOneWhereOneFillsTheWire) {
  StreamCount count = far_count();
  EXPECT_EQ(count_after(count, shared_wire(1e9, 25e6), 60.0), 4);
}

TEST(StreamCount, GrowsWithinSeconds) {
  StreamCount count(0);
  count.set_round_trip(150e-3);
  // Three steps of two windows, of ten round trips each.
  EXPECT_EQ(count_after(count, shared_wire(0.4e6, 25e6), 9.1), 64);
}

TEST(StreamCount, LetsTheStartsOfConnectionsPass) {
  StreamCount count = far_count();
  EXPECT_EQ(count_after(count, shared_wire(1e6, 25e6), 0.6), 1);
  EXPECT_EQ(count_after(count, shared_wire(1e6, 25e6), 60.0, /*is_held_back=*/false), 1);
}

TEST(StreamCount, ComparesWithTheRateBeforeThePeerWantedMore) {
  StreamCount count = far_count();
  EXPECT_EQ(count_after(count, shared_wire(25e6, 25e6), 1.1, /*is_held_back=*/false), 1);
  for (int number = 2; number <= 4; ++number) count.raise_to(number);
  EXPECT_EQ(count_after(count, shared_wire(25e6, 25e6), 60.0), 4);
}

TEST(StreamCount, GrowsAgainWhenTheRateFalls) {
  StreamCount count = far_count();
  EXPECT_EQ(count_after(count, shared_wire(25e6, 25e6), 60.0), 4);
  // Losses: now each connection has a fiftieth.
  EXPECT_GE(count_after(count, shared_wire(0.5e6, 25e6), 60.0), 32);
}

TEST(StreamCount, NeverExceedsTheMost) {
  StreamCount count = far_count();
  EXPECT_EQ(count_after(count, shared_wire(1e3, 1e9), 200.0), StreamCount::kMax);
  EXPECT_EQ(count_after(count, shared_wire(1.0, 1e9), 200.0), StreamCount::kMax);
}

}  // namespace
}  // namespace gossamer::tcp
