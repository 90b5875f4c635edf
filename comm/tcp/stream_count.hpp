#pragma once
// How many data connections two ranks should have.
//
// One connection fills the wire where no packet is lost. On a far link a single loss halves a
// connection's rate for many round trips, and its window may be smaller than the data on the wire.
// Several connections together are then as fast as the wire. Where no packet is lost, several
// connections are slower, because a message waits for its slowest connection.
//
// 1. The count begins with one connection.
// 2. Each rank measures the rate at which its messages leave, over the time in which they wait for
//    the network.
// 3. More connections help in two cases: TCP loses packets although no queue is full, or TCP's
//    buffers limit the rate. The count then grows to four times as many, as long as the rate grows
//    with the count.
// 4. The count grows again when the rate falls.
//
// Thread safety: none.

#include <cstdint>

namespace gossamer::tcp {

class StreamCount {
 public:
  static constexpr int kMax = 64;

  /// `fixed` > 0: always this number. 0: it is found out.
  explicit StreamCount(int fixed) : fixed_(fixed), wanted_(fixed > 0 ? fixed : 1) {}

  [[nodiscard]] bool is_fixed() const { return fixed_ > 0; }
  [[nodiscard]] int wanted() const { return wanted_; }
  /// Whether hosts with this round trip are not next to each other.
  static bool is_far(double round_trip_s);
  /// The other end wants so many.
  void raise_to(int number);
  /// The connections have this round trip when nothing else is under way.
  void set_round_trip(double seconds);
  [[nodiscard]] double round_trip_s() const { return round_trip_s_; }
  /// `seconds` of time in which messages wait for the network, and `bytes` that have left. Returns
  /// whether a window is over; judge() must follow.
  bool add(double seconds, std::int64_t bytes);
  /// `is_held_back`: in this window TCP has lost packets without need, or has waited for buffers.
  void judge(bool is_held_back);

 private:
  /// `rate`: what more connections have to beat.
  void grow(double rate);

  int fixed_;
  int wanted_;
  double round_trip_s_ = 0.0;
  double busy_s_ = 0.0;
  std::int64_t bytes_ = 0;
  /// Bytes per second: what the last increase had to beat, and the best since then.
  double rate_before_ = 0.0;
  double best_ = 0.0;
  /// Windows since the last increase.
  int num_windows_ = 0;
  bool is_settled_ = false;
};

}  // namespace gossamer::tcp
