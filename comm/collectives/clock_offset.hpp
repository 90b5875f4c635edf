#pragma once
// Measures the difference between this rank's clock and rank 0's clock with messages (Cristian,
// "Probabilistic clock synchronization", Distributed Computing 1989). A rank sends a message to
// rank 0, which answers with the time on its clock. The answer counts as given in the middle of the
// round trip. The error is at most half of the round trip, so the shortest of several trips counts.
//
// Errors: CommError. No state; a ClockMap is not changed by use.

#include <cstdint>

#include "base/timeline.hpp"
#include "comm/communicator.hpp"

namespace gossamer {

struct ClockReading {
  /// When it was measured, by this rank's clock.
  std::int64_t at_ns = 0;
  /// The number to add to this rank's clock to get rank 0's clock. It is 0 where the measured
  /// difference is not larger than its error, because ranks on one host have one clock.
  std::int64_t offset_ns = 0;
  /// The length of the shortest round trip; 0 on rank 0.
  std::int64_t round_trip_ns = 0;
};

/// Collective. Rank 0 serves the other ranks one after the other, with `num_trips` >= 1 round trips
/// each. A quiet network gives short trips, so nothing else should be in flight.
ClockReading read_clock_offset(Communicator& communicator, const NanosecondClock& clock,
                               int num_trips = 16);

/// Turns this rank's times into times of rank 0's clock. Between two readings the offset changes
/// evenly; outside it stays as in the nearer reading.
class ClockMap {
 public:
  ClockMap() = default;
  ClockMap(const ClockReading& first, const ClockReading& last) : first_(first), last_(last) {}

  [[nodiscard]] std::int64_t time_of_rank_0(std::int64_t own_ns) const;
  [[nodiscard]] const ClockReading& first() const { return first_; }
  [[nodiscard]] const ClockReading& last() const { return last_; }

 private:
  ClockReading first_ = {};
  ClockReading last_ = {};
};

}  // namespace gossamer
