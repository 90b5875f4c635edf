#include "comm/tcp/stream_count.hpp"

#include <algorithm>

namespace gossamer::tcp {
namespace {

/// Hosts next to each other; one connection is enough.
constexpr double kNear = 2e-3;
/// A connection for each so many seconds of the round trip, to begin with.
constexpr double kRoundTripPerStream = 10e-3;
constexpr int kMaxAtFirst = 16;
/// A window has so many seconds, and so many round trips: new connections find their speed in them.
constexpr double kWindow = 1.0;
constexpr double kWindowRoundTrips = 10.0;
/// More connections have helped if the rate is so much larger.
constexpr double kGain = 1.1;
/// The rate has fallen if it is so much smaller than the best.
constexpr double kFall = 0.7;

}  // namespace

void StreamCount::set_round_trip(double seconds) {
  round_trip_s_ = seconds;
  if (fixed_ > 0 || seconds < kNear) return;
  wanted_ = std::clamp(static_cast<int>(seconds / kRoundTripPerStream), 2, kMaxAtFirst);
}

void StreamCount::add(double seconds, std::int64_t bytes) {
  if (fixed_ > 0 || round_trip_s_ < kNear) return;
  busy_s_ += seconds;
  bytes_ += bytes;
  if (busy_s_ < std::max(kWindow, kWindowRoundTrips * round_trip_s_)) return;
  judge(static_cast<double>(bytes_) / busy_s_);
  busy_s_ = 0.0;
  bytes_ = 0;
}

void StreamCount::judge(double rate) {
  ++num_windows_;
  // The first window has the connections' own start in it.
  if (num_windows_ == 1) {
    best_ = rate;
    return;
  }
  if (is_settled_) {
    if (rate < kFall * best_) return double_up(rate);
    best_ = std::max(best_, rate);
    return;
  }
  best_ = std::max(best_, rate);
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
