#include "comm/tcp/stream_count.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::tcp {
namespace {

/// Hosts next to each other; one connection is enough.
constexpr double kNear = 2e-3;
/// A window has so many seconds, and so many round trips: new connections find their speed in them.
constexpr double kWindow = 1.0;
constexpr double kWindowRoundTrips = 10.0;
/// More connections have helped if the rate is so much larger.
constexpr double kGain = 1.1;
/// The rate has fallen if it is so much smaller than the best.
constexpr double kFall = 0.7;

}  // namespace

bool StreamCount::is_far(double round_trip_s) { return round_trip_s >= kNear; }

void StreamCount::raise_to(int number) {
  if (fixed_ > 0 || number <= wanted_) return;
  wanted_ = number;
  best_ = 0.0;
  num_windows_ = 0;
}

void StreamCount::set_round_trip(double seconds) { round_trip_s_ = seconds; }

bool StreamCount::add(double seconds, std::int64_t bytes) {
  if (fixed_ > 0 || !is_far(round_trip_s_)) return false;
  busy_s_ += seconds;
  bytes_ += bytes;
  return busy_s_ >= std::max(kWindow, kWindowRoundTrips * round_trip_s_);
}

void StreamCount::judge(bool is_held_back) {
  const double rate = static_cast<double>(std::exchange(bytes_, 0)) / std::exchange(busy_s_, 0.0);
  const bool goes_on = std::exchange(was_held_back_, is_held_back) && is_held_back;
  ++num_windows_;
  // The first window has the connections' own start in it.
  if (num_windows_ == 1) {
    best_ = rate;
    return;
  }
  if (is_settled_) {
    if (rate < kFall * best_ && goes_on) return double_up(rate);
    best_ = std::max(best_, rate);
    return;
  }
  best_ = std::max(best_, rate);
  if (!goes_on) return;
  if (best_ > kGain * rate_before_) return double_up(best_);
  is_settled_ = true;
}

void StreamCount::double_up(double rate) {
  is_settled_ = wanted_ == kMax;
  if (is_settled_) {
    // Nothing is left to try, so what is reached counts.
    best_ = rate;
    return;
  }
  wanted_ = std::min(2 * wanted_, kMax);
  rate_before_ = rate;
  best_ = 0.0;
  num_windows_ = 0;
}

}  // namespace gossamer::tcp
