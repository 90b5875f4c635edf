#include "test/hosts/packet_schedule.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer::hosts {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// A packet of 1000 bytes takes a millisecond to pass a link.
constexpr std::int64_t kRate = 8'000'000;
constexpr std::size_t kSize = 1000;

struct Arrival {
  Time time;
  int host;
  std::byte mark;
};

Packet packet(int mark, std::size_t size = kSize) {
  Packet result(size, static_cast<std::byte>(mark));
  return result;
}

/// Lets time pass until no packet is on its way.
std::vector<Arrival> arrivals(PacketSchedule& schedule) {
  std::vector<Arrival> all;
  while (const std::optional<Time> next = schedule.next()) {
    schedule.advance(*next, [&](int host, const Packet& arrived) {
      all.push_back({*next, host, arrived[0]});
    });
  }
  return all;
}

TEST(PacketSchedule, TakesHalfTheRoundTripAndTheTimeOfBothLinks) {
  PacketSchedule schedule({2, kRate, milliseconds(50), 0});
  schedule.send(Time(milliseconds(7)), 0, 1, packet(1));
  const std::vector<Arrival> all = arrivals(schedule);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].time, Time(milliseconds(7 + 1 + 25 + 1)));
  EXPECT_EQ(all[0].host, 1);
}

TEST(PacketSchedule, DeliversNothingEarly) {
  PacketSchedule schedule({2, kRate, milliseconds(50), 0});
  schedule.send(Time(), 0, 1, packet(1));
  int num_delivered = 0;
  const auto count = [&](int, const Packet&) { ++num_delivered; };
  schedule.advance(Time(milliseconds(27) - std::chrono::nanoseconds(1)), count);
  EXPECT_EQ(num_delivered, 0);
  schedule.advance(Time(milliseconds(27)), count);
  EXPECT_EQ(num_delivered, 1);
}

TEST(PacketSchedule, SendsAndReceivesAtTheRate) {
  PacketSchedule schedule({3, kRate, milliseconds(0), 0});
  // Both senders have the whole rate, and the receiver is the bottleneck.
  for (int i = 0; i < 10; ++i) {
    schedule.send(Time(), 0, 2, packet(0));
    schedule.send(Time(), 1, 2, packet(1));
  }
  const std::vector<Arrival> all = arrivals(schedule);
  ASSERT_EQ(all.size(), 20U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].time, Time(milliseconds(2 + static_cast<int>(i)))) << i;
    EXPECT_EQ(all[i].mark, static_cast<std::byte>(i % 2)) << i;
  }
}

TEST(PacketSchedule, KeepsTheOrderOfAPair) {
  PacketSchedule schedule({3, kRate, milliseconds(3), 0});
  for (int i = 0; i < 30; ++i) {
    const Time now(microseconds(700 * i));
    schedule.send(now, 0, 2, packet(i, i % 3 == 0 ? kSize : 40));
    schedule.send(now, 1, 2, packet(100 + i, i % 5 == 0 ? 40 : kSize));
  }
  int from_first = 0;
  int from_second = 100;
  for (const Arrival& arrival : arrivals(schedule)) {
    const int mark = std::to_integer<int>(arrival.mark);
    int& expected = mark < 100 ? from_first : from_second;
    EXPECT_EQ(mark, expected);
    ++expected;
  }
  EXPECT_EQ(from_first, 30);
  EXPECT_EQ(from_second, 130);
}

TEST(PacketSchedule, DropsWhatTheSendersQueueCannotHold) {
  for (const milliseconds round_trip : {milliseconds(0), milliseconds(80)}) {
    PacketSchedule schedule({2, kRate, round_trip, 0});
    for (int i = 0; i < 200; ++i) schedule.send(Time(), 0, 1, packet(i));
    const std::vector<Arrival> all = arrivals(schedule);
    // One packet passes, the others wait for it and for each other.
    const std::size_t num_waiting = round_trip == milliseconds(0) ? 50 : 80;
    ASSERT_EQ(all.size(), num_waiting + 1);
    EXPECT_EQ(all.back().mark, static_cast<std::byte>(num_waiting));
  }
}

TEST(PacketSchedule, DropsWhatTheReceiversQueueCannotHold) {
  constexpr int kSenders = 5;
  PacketSchedule schedule({kSenders + 1, kRate, milliseconds(0), 0});
  for (int from = 0; from < kSenders; ++from) {
    for (int i = 0; i < 40; ++i) schedule.send(Time(), from, kSenders, packet(from));
  }
  const std::vector<Arrival> all = arrivals(schedule);
  // The senders' queues hold all 200 packets. The last of them come after 40 milliseconds, in which
  // 40 have passed, and 50 more may wait then.
  EXPECT_GE(all.size(), 85U);
  EXPECT_LE(all.size(), 91U);
}

TEST(PacketSchedule, AQueueIsEmptyAgainAfterAWhile) {
  PacketSchedule schedule({2, kRate, milliseconds(0), 0});
  for (int i = 0; i < 200; ++i) schedule.send(Time(), 0, 1, packet(0));
  const std::size_t num_first = arrivals(schedule).size();
  for (int i = 0; i < 200; ++i) schedule.send(Time(milliseconds(300)), 0, 1, packet(1));
  EXPECT_EQ(arrivals(schedule).size(), num_first);
}

TEST(PacketSchedule, LosesTheSamePacketsInEveryRun) {
  const auto marks = [] {
    PacketSchedule schedule({2, kRate, milliseconds(0), 0.25});
    std::vector<std::byte> all;
    for (int i = 0; i < 200; ++i) {
      schedule.send(Time(milliseconds(2 * i)), 0, 1, packet(i));
    }
    for (const Arrival& arrival : arrivals(schedule)) all.push_back(arrival.mark);
    return all;
  };
  const std::vector<std::byte> first = marks();
  // 200 * 0.75 = 150 with a standard deviation of 6.1.
  EXPECT_GT(first.size(), 110U);
  EXPECT_LT(first.size(), 190U);
  EXPECT_EQ(first, marks());
}

TEST(PacketSchedule, LosesNothingOrEverythingIfAsked) {
  for (const int loss : {0, 1}) {
    PacketSchedule schedule({2, kRate, milliseconds(1), static_cast<double>(loss)});
    for (int i = 0; i < 40; ++i) schedule.send(Time(), 0, 1, packet(i));
    EXPECT_EQ(arrivals(schedule).size(), loss == 0 ? 40U : 0U);
  }
}

}  // namespace
}  // namespace gossamer::hosts
