#pragma once
// A Timeline records what one rank does and when it does it, as spans. The computing thread records
// its own work (forward, wait, update), and the progress worker records the operations on the wire.
// core/trace puts the timelines of all ranks into one file.
//
// Protocol: begin_step() starts the recording of a step, and pause() ends the recording. A scope
// that begins while nothing is recorded stays unrecorded. So does a scope without a timeline, which
// costs a few nanoseconds. To record a new kind of work, write one line at its beginning:
//
//   const TimelineScope scope(timeline, {.what = "encode", .bucket = b, .round = k});
//
// Memory is reserved once, when the timeline is made. When it is full, further spans are dropped
// and counted.
//
// Thread safety: any thread may call, at any time. Errors: std::bad_alloc from the constructor.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "base/error.hpp"

namespace gossamer {

/// A clock in nanoseconds that never goes back. Its zero may be anywhere.
using NanosecondClock = std::function<std::int64_t()>;

/// std::chrono::steady_clock in nanoseconds.
std::int64_t steady_ns();

struct TimelineSpan {
  /// The part of a rank that did the work: its computation, or its messages.
  enum class Row : std::uint8_t { kCompute, kWire };
  static constexpr std::size_t kMostPeers = 8;

  /// The text of `label.what` must live as long as the program.
  OpLabel label = {};
  Row row = Row::kCompute;
  /// The step in which the span began; on the wire, the step that submitted the operation.
  std::int64_t step = -1;
  /// On the wire: the size of the block that the operation carries, encoded or plain. Else 0.
  std::int64_t bytes = 0;
  /// World ranks of the others that took part; the first kMostPeers of them.
  std::array<std::int32_t, kMostPeers> peers = {};
  /// How many others took part.
  std::int64_t num_peers = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;

  void set_peers(std::span<const int> ranks);
  /// The ranks that `peers` has.
  [[nodiscard]] std::span<const std::int32_t> known_peers() const;
};

class Timeline {
 public:
  /// Enough for 20 steps of gossip with 800 buckets.
  static constexpr std::size_t kDefaultCapacity = std::size_t{1} << 16U;

  /// `capacity`: the number of spans that there is memory for.
  explicit Timeline(std::size_t capacity = kDefaultCapacity, NanosecondClock clock = steady_ns);

  /// Starts the recording of step `step` >= 0.
  void begin_step(std::int64_t step) { step_.store(step, std::memory_order_relaxed); }
  /// Ends the recording. Work that has begun before is still recorded when it ends.
  void pause() { step_.store(-1, std::memory_order_relaxed); }
  /// The step that is being recorded; -1: none.
  [[nodiscard]] std::int64_t step() const { return step_.load(std::memory_order_relaxed); }

  [[nodiscard]] std::int64_t now_ns() const { return clock_(); }
  void record(const TimelineSpan& span);

  /// All spans so far, in the order in which they ended.
  [[nodiscard]] std::vector<TimelineSpan> spans() const;
  /// Number of spans that found no room.
  [[nodiscard]] std::int64_t num_dropped() const;

 private:
  const NanosecondClock clock_;
  const std::size_t capacity_;
  std::atomic<std::int64_t> step_ = -1;
  mutable std::mutex mutex_;
  std::vector<TimelineSpan> spans_;  // guarded by mutex_
  std::int64_t num_dropped_ = 0;     // guarded by mutex_
};

/// Records the time between its construction and destruction.
class TimelineScope {
 public:
  /// `timeline` may be null, and must outlive the scope.
  TimelineScope(Timeline* timeline, const OpLabel& label) {
    if (timeline == nullptr) return;
    span_.step = timeline->step();
    if (span_.step < 0) return;
    timeline_ = timeline;
    span_.label = label;
    span_.start_ns = timeline->now_ns();
  }
  ~TimelineScope() {
    if (timeline_ == nullptr) return;
    span_.end_ns = timeline_->now_ns();
    timeline_->record(span_);
  }
  TimelineScope(const TimelineScope&) = delete;
  TimelineScope& operator=(const TimelineScope&) = delete;

 private:
  Timeline* timeline_ = nullptr;
  TimelineSpan span_ = {};
};

}  // namespace gossamer
