#pragma once
// An OpTrace records one operation on a timeline: `queued` from submit() to the start, then the
// operation itself until the worker sees that it is over.
//
// Protocol: submitted(), started(), over(), in this order; the operation's label names the second
// span. An operation that fails leaves its `queued` alone. Thread safety: one thread at a time.

#include <memory>
#include <span>
#include <utility>

#include "base/timeline.hpp"

namespace gossamer {

class OpTrace {
 public:
  /// Records nothing.
  OpTrace() = default;
  /// Records nothing if `timeline` is null or paused at this moment. `bytes`: see TimelineSpan.
  OpTrace(const std::shared_ptr<Timeline>& timeline, std::int64_t bytes) {
    if (!timeline || timeline->step() < 0) return;
    timeline_ = timeline;
    span_.row = TimelineSpan::Row::kWire;
    span_.step = timeline->step();
    span_.bytes = bytes;
  }

  [[nodiscard]] bool records() const { return timeline_ != nullptr; }
  /// Sets the bytes of an operation that carries only a part of its block.
  void set_bytes(std::int64_t bytes) { span_.bytes = bytes; }

  void submitted() {
    if (timeline_) span_.start_ns = timeline_->now_ns();
  }
  void started(const OpLabel& label, std::span<const int> peers) {
    if (!timeline_) return;
    span_.set_peers(peers);
    record({.what = "queued", .bucket = label.bucket, .round = label.round});
    span_.start_ns = span_.end_ns;
  }
  void over(const OpLabel& label) {
    if (timeline_) record(label);
  }

 private:
  void record(const OpLabel& label) {
    span_.label = label;
    span_.end_ns = timeline_->now_ns();
    timeline_->record(span_);
  }

  std::shared_ptr<Timeline> timeline_;
  TimelineSpan span_ = {};
};

}  // namespace gossamer
