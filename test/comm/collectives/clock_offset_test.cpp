// Clocks that tell other times, and what is measured of them.

#include "comm/collectives/clock_offset.hpp"

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/backends.hpp"

namespace gossamer {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

/// The true offset of a rank, to be added to its clock.
std::int64_t offset_of(int rank) { return rank == 2 ? -17 * kSecond : rank * 40'000'000LL; }

void on_ranks(int num_ranks, const std::function<void(Communicator&)>& body) {
  EXPECT_EQ(launch("threads", {.num_ranks = num_ranks, .timeout_s = 60.0},
                   [&body](Communicator& communicator, const World&) {
                     body(communicator);
                     return 0;
                   }),
            0);
}

TEST(ClockOffset, IsMeasuredToWithinHalfARoundTrip) {
  on_ranks(4, [](Communicator& communicator) {
    const int rank = communicator.rank();
    const auto clock = [rank] { return steady_ns() - offset_of(rank); };
    const ClockReading reading = read_clock_offset(communicator, clock);
    if (rank == 0) {
      EXPECT_EQ(reading.offset_ns, 0);
      EXPECT_EQ(reading.round_trip_ns, 0);
      return;
    }
    EXPECT_GT(reading.round_trip_ns, 0);
    EXPECT_LE(std::abs(reading.offset_ns - offset_of(rank)), reading.round_trip_ns / 2 + 1)
        << "rank " << rank << ", round trip " << reading.round_trip_ns << " ns";
    // Far below the offsets, or the line above says nothing.
    EXPECT_LT(reading.round_trip_ns, kSecond / 2);
  });
}

TEST(ClockOffset, IsZeroWhereAllRanksHaveOneClock) {
  on_ranks(3, [](Communicator& communicator) {
    EXPECT_EQ(read_clock_offset(communicator, steady_ns).offset_ns, 0);
  });
}

TEST(ClockOffset, TakesTheShortestTrip) {
  on_ranks(2, [](Communicator& communicator) {
    // On rank 0 the first answers are late: the clock stands still for them.
    int num_calls = 0;
    const auto clock = [&] {
      const std::int64_t now = steady_ns();
      if (communicator.rank() == 0 && (++num_calls <= 3 || num_calls == 8)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      }
      return now + communicator.rank() * kSecond;
    };
    const ClockReading reading = read_clock_offset(communicator, clock, 8);
    if (communicator.rank() == 0) return;
    EXPECT_LT(reading.round_trip_ns, 300'000'000);
    EXPECT_LE(std::abs(reading.offset_ns + kSecond), reading.round_trip_ns / 2 + 1);
  });
}

TEST(ClockMap, FollowsADriftBetweenTwoReadings) {
  const ClockMap map({.at_ns = 1'000, .offset_ns = 500}, {.at_ns = 2'000, .offset_ns = 700});
  EXPECT_EQ(map.time_of_rank_0(1'000), 1'500);
  EXPECT_EQ(map.time_of_rank_0(1'250), 1'800);
  EXPECT_EQ(map.time_of_rank_0(2'000), 2'700);
  // Outside, as in the nearer reading.
  EXPECT_EQ(map.time_of_rank_0(0), 500);
  EXPECT_EQ(map.time_of_rank_0(5'000), 5'700);
  EXPECT_EQ(ClockMap().time_of_rank_0(77), 77);
}

}  // namespace
}  // namespace gossamer
