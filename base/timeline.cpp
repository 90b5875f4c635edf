#include "base/timeline.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace gossamer {

std::int64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void TimelineSpan::set_peers(std::span<const int> ranks) {
  num_peers = std::ssize(ranks);
  std::ranges::copy(ranks.first(std::min(ranks.size(), kMostPeers)), peers.begin());
}

std::span<const std::int32_t> TimelineSpan::known_peers() const {
  return std::span(peers).first(std::min(static_cast<std::size_t>(num_peers), kMostPeers));
}

Timeline::Timeline(std::size_t capacity, NanosecondClock clock)
    : clock_(std::move(clock)), capacity_(capacity) {
  spans_.reserve(capacity);
}

void Timeline::record(const TimelineSpan& span) {
  const std::lock_guard lock(mutex_);
  if (spans_.size() < capacity_) {
    spans_.push_back(span);
  } else {
    ++num_dropped_;
  }
}

std::vector<TimelineSpan> Timeline::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::int64_t Timeline::num_dropped() const {
  const std::lock_guard lock(mutex_);
  return num_dropped_;
}

}  // namespace gossamer
