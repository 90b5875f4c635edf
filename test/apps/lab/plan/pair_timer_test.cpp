// Trains of blocks on made-up links: when they are long enough, and what their bandwidth is.

#include "apps/lab/plan/pair_timer.hpp"

#include "test/core/ranks.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer::apps {
namespace {

/// Seconds until each of `length` blocks is there, where TCP sends `first_bytes` in the first round
/// trip and twice as many in each further one, up to the link's bandwidth.
std::vector<double> slow_start(int length, double bytes, double round_trip_s, double bandwidth) {
  constexpr double kParts = 100.0;
  std::vector<double> ends_s;
  double window = 15e3;
  double sent = 0.0;
  double now_s = 0.0;
  double next_window_s = round_trip_s;
  while (static_cast<int>(ends_s.size()) < length) {
    const double rate = std::min(window / round_trip_s, bandwidth);
    now_s += bytes / kParts / rate;
    sent += bytes / kParts;
    if (now_s >= next_window_s) {
      window *= 2.0;
      next_window_s = now_s + round_trip_s;
    }
    // Sums of parts of a block are not exact.
    if (sent >= bytes * (static_cast<double>(ends_s.size()) + 1.0) - 1.0) ends_s.push_back(now_s);
  }
  return ends_s;
}

/// The length at which a train of a pair is long enough.
int length_of(double bytes, double round_trip_s, double bandwidth) {
  int length = 1;
  while (true) {
    const int wanted =
        blocks_wanted(slow_start(length, bytes, round_trip_s, bandwidth), round_trip_s);
    if (wanted == length) return length;
    EXPECT_GT(wanted, length);
    length = wanted;
  }
}

TEST(Train, IsOneBlockOnANearLink) { EXPECT_EQ(length_of(16e6, 1e-4, 1e9), 1); }

TEST(Train, FollowsRoundTripAndRateOfAFarLink) {
  for (const double round_trip_s : {0.01, 0.05, 0.2}) {
    for (const double bandwidth : {1e6, 25e6, 125e6}) {
      const double bytes = 1e6;
      const int length = length_of(bytes, round_trip_s, bandwidth);
      const double least = 40.0 * round_trip_s * bandwidth / bytes;
      EXPECT_GE(length, 4);
      EXPECT_LE(length, std::max(8.0, 2.0 * least)) << round_trip_s << " " << bandwidth;
      const std::vector<double> ends_s = slow_start(length, bytes, round_trip_s, bandwidth);
      EXPECT_NEAR(bytes / steady_block_s(ends_s, round_trip_s) / bandwidth, 1.0, 1e-6)
          << round_trip_s << " " << bandwidth;
    }
  }
}

TEST(Train, LeavesOutTheSlowStart) {
  const std::vector<double> ends_s = slow_start(200, 1e6, 0.1, 25e6);
  EXPECT_LT(200 * 1e6 / ends_s.back(), 0.97 * 25e6);
  EXPECT_NEAR(1e6 / steady_block_s(ends_s, 0.1), 25e6, 1.0);
}

TEST(Train, OfOneBlockHasTheBytesAlone) {
  EXPECT_EQ(steady_block_s({0.75}, 0.25), 0.5);
  EXPECT_EQ(steady_block_s({0.25}, 0.5), 0.25) << "the machine was busy";
}

TEST(PairTimer, SendsTrainsBetweenPairsInTurns) {
  const auto body = [](Communicator& communicator, const World& world) {
    const std::vector<RankPair> pairs = {{0, 1}, {1, 2}};
    PairTimer timer(communicator, pairs, /*together=*/false, /*counts_tcp=*/true);
    // As if the links were far.
    const std::vector<double> small_s(pairs.size(), 2e-3);
    const std::vector<double> block_s = timer.steady_s(4096, 3, small_s);
    ASSERT_EQ(block_s.size(), 2U);
    EXPECT_EQ(block_s[0] > 0.0, world.rank <= 1);
    EXPECT_EQ(block_s[1] > 0.0, world.rank >= 1);
    // Threads have no connections that carry blocks.
    for (const TcpTraffic& each : timer.tcp_traffic()) EXPECT_LT(each.sum.bytes, 4096);
  };
  run_ranks(3, body);
}

}  // namespace
}  // namespace gossamer::apps
