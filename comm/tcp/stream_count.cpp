#include "comm/tcp/stream_count.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::tcp {
namespace {

/// Hosts next to each other; one connection is enough.
constexpr double kNear = 2e-3;
/// A window has so many seconds, and so many round trips: new connections find their speed in them.
constexpr double kWindow = 0.5;
constexpr double kWindowRoundTrips = 10.0;
constexpr int kGrowth = 4;
/// More connections have helped if the rate is so much larger.
constexpr double kGain = 1.1;
/// The rate has fallen if it is so much smaller than the best.
constexpr double kFall = 0.7;

}  // namespace

bool StreamCount::is_far(double round_trip_s) { return round_trip_s >= kNear; }

void StreamCount::raise_to(int number) {
  if (fixed_ > 0 || number <= wanted_) return;
  wanted_ = number;
  if (best_ > 0.0) rate_before_ = std::exchange(best_, 0.0);
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
  ++num_windows_;
  best_ = std::max(best_, rate);
  // The first window has the connections' own start in it, and the losses of that.
  if (num_windows_ == 1 || !is_held_back) return;
  if (is_settled_) {
    if (rate < kFall * best_) grow(rate);
  } else if (best_ > kGain * rate_before_) {
    grow(best_);
  } else {
    is_settled_ = true;
  }
}

void StreamCount::grow(double rate) {
  is_settled_ = wanted_ == kMax;
  if (is_settled_) {
    // Nothing is left to try, so what is reached counts.
    best_ = rate;
    return;
  }
  wanted_ = std::min(kGrowth * wanted_, kMax);
  rate_before_ = rate;
  best_ = 0.0;
  num_windows_ = 0;
}

}  // namespace gossamer::tcp
