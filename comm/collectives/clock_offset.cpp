#include "comm/collectives/clock_offset.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

namespace gossamer {
namespace {

constexpr OpLabel kClockLabel = {.what = "clock"};

/// One number to send and one to receive. The operations own them: they may outlive the caller.
struct Mail {
  std::int64_t sent = 0;
  std::int64_t received = 0;

  [[nodiscard]] ConstBlock to_send() const { return {&sent, 1, DType::kInt64}; }
  [[nodiscard]] Block to_receive() { return {&received, 1, DType::kInt64, {}}; }
};

/// What rank 0 does for each trip of `rank`.
void answer(Communicator& communicator, const NanosecondClock& clock, int rank) {
  const auto mail = std::make_shared<Mail>();
  const OpContext context{.label = kClockLabel, .owner = mail};
  communicator.exchange_with_neighbors(mail->to_send(), {}, {{rank, mail->to_receive()}}, context)
      .wait();
  mail->sent = clock();
  communicator.exchange_with_neighbors(mail->to_send(), {rank}, {}, context).wait();
}

ClockReading make_trip(Communicator& communicator, const NanosecondClock& clock) {
  const auto mail = std::make_shared<Mail>();
  const std::int64_t begin = clock();
  communicator
      .exchange_with_neighbors(mail->to_send(), {0}, {{0, mail->to_receive()}},
                               {.label = kClockLabel, .owner = mail})
      .wait();
  const std::int64_t end = clock();
  const std::int64_t middle = begin + (end - begin) / 2;
  return {.at_ns = middle, .offset_ns = mail->received - middle, .round_trip_ns = end - begin};
}

}  // namespace

ClockReading read_clock_offset(Communicator& communicator, const NanosecondClock& clock,
                               int num_trips) {
  if (communicator.rank() == 0) {
    for (int rank = 1; rank < communicator.size(); ++rank) {
      for (int trip = 0; trip < num_trips; ++trip) answer(communicator, clock, rank);
    }
    return {.at_ns = clock()};
  }
  ClockReading best{.round_trip_ns = std::numeric_limits<std::int64_t>::max()};
  for (int trip = 0; trip < num_trips; ++trip) {
    const ClockReading reading = make_trip(communicator, clock);
    if (reading.round_trip_ns < best.round_trip_ns) best = reading;
  }
  if (std::abs(best.offset_ns) <= best.round_trip_ns / 2) best.offset_ns = 0;
  return best;
}

std::int64_t ClockMap::time_of_rank_0(std::int64_t own_ns) const {
  const std::int64_t between = last_.at_ns - first_.at_ns;
  if (between <= 0) return own_ns + first_.offset_ns;
  const double part = std::clamp(
      static_cast<double>(own_ns - first_.at_ns) / static_cast<double>(between), 0.0, 1.0);
  const double drift = part * static_cast<double>(last_.offset_ns - first_.offset_ns);
  return own_ns + first_.offset_ns + std::llround(drift);
}

}  // namespace gossamer
