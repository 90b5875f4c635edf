#pragma once
// A StepTimeline records some steps of a training on all ranks, and writes them to one file.
//
// Protocol:
//
// 1. Make a StepTimeline on every rank, and give timeline() to the objects that record.
// 2. Call before_step() before every step. Two steps before the first recorded step, and after the
//    last recorded step, the ranks wait for operations in flight and compare their clocks. All
//    other calls return at once.
// 3. Call finish() after the last step. Rank 0 gathers the spans and writes the file at the end of
//    the recording.
//
// Where ranks go on without a lost rank (Elastic::reconfigure()), or a rank joins, all ranks next
// call enter_world(). The file then has the spans of the ranks that are there when it is written.
//
// If a rank fails otherwise, there is no file. Not thread safe. Errors: CommError; on rank 0
// CheckpointError if the file cannot be written.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "base/timeline.hpp"
#include "comm/collectives/clock_offset.hpp"
#include "comm/communicator.hpp"

namespace gossamer {

/// The recorded steps: `begin` steps are left out, and after step `end` the recording is over.
struct TimelineSteps {
  std::int64_t begin = 10;
  std::int64_t end = 30;
};

/// Reads `BEGIN:END`; null unless 0 <= BEGIN < END.
std::optional<TimelineSteps> parse_timeline_steps(std::string_view text);
/// The default for a run of `total` steps: 10:30, or the second half of a shorter run.
TimelineSteps default_timeline_steps(std::int64_t total);

class StepTimeline {
 public:
  struct Config {
    /// Rank 0 writes this file, and makes its folder. It removes an older file when the recording
    /// begins.
    std::string path;
    /// Names the run in the file.
    std::string about = {};
    TimelineSteps steps = {};
    /// May differ between ranks in offset and rate.
    NanosecondClock clock = steady_ns;
    /// Spans that a rank has memory for. With many ranks it is less, so that the file stays below
    /// 1 GiB.
    std::size_t capacity = Timeline::kDefaultCapacity;
  };

  /// `communicator` must outlive this object.
  StepTimeline(Communicator& communicator, Config config);

  [[nodiscard]] const std::shared_ptr<Timeline>& timeline() const { return timeline_; }
  /// Sets the steps of a run whose number of steps becomes known late. Call it only before the
  /// first before_step().
  void set_steps(const TimelineSteps& steps) { config_.steps = steps; }
  /// Collective, in a new world. All go on as rank 0 does, and compare their clocks anew.
  /// `num_steps`: the steps that have been made since the first before_step() of the run, the same
  /// on all ranks.
  void enter_world(std::int64_t num_steps);

  /// Collective in some steps. The spans of the step get the number `step` >= 0. `drain` waits for
  /// the exchanges in flight. Returns a sentence for the user on rank 0 when the file has been
  /// written, else an empty text.
  std::string before_step(std::int64_t step, const std::function<void()>& drain);
  /// Collective. Like before_step(), after the last step.
  std::string finish(const std::function<void()>& drain);
  /// before_step(), or finish() where `step` is nothing, and their sentence in the log. A file that
  /// cannot be written is a warning there, because the run itself is fine.
  void advance(std::optional<std::int64_t> step, const std::function<void()>& drain,
               const Logger& logger);

 private:
  std::string write(const std::function<void()>& drain);

  Communicator& communicator_;
  Config config_;
  std::shared_ptr<Timeline> timeline_;
  /// Steps that have begun.
  std::int64_t num_steps_ = 0;
  std::optional<ClockReading> first_clock_;
  bool is_written_ = false;
};

}  // namespace gossamer
