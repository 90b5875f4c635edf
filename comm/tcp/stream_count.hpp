#pragma once
// How many data connections two ranks should have.
//
// One connection fills a near link. On a far one a single loss halves its rate for many round
// trips, and its window may be smaller than what the wire holds; several connections together are
// as fast as the wire. So the count begins with the round trip. Then each rank measures the rate at
// which its messages leave, over the time in which all connections are busy. While more connections
// help, their number doubles. When the rate falls, more are tried again.
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
  /// The connections have this round trip when nothing else is under way.
  void set_round_trip(double seconds);
  /// `seconds` of time in which all connections were busy and `bytes` have left.
  void add(double seconds, std::int64_t bytes);

 private:
  /// The rate over a whole window.
  void judge(double rate);
  /// `rate`: what more connections have to beat.
  void double_up(double rate);

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
