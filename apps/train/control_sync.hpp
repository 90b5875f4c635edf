#pragma once
// Ranks tell one another about signals and other events between two steps, without waiting: a
// meeting starts a sum over all ranks, and the next meeting reads it. All ranks therefore learn the
// same facts before the same step, although some ranks are ahead of others.
//
// Protocol, the same on all ranks: before every step, if is_due(step), call meet(). At the end call
// leave(). Meetings are about a quarter of a second apart, by the ranks' mean step time.
//
// Ranks that do not go in step call poll() before every step instead. It never waits. All ranks get
// the same sums in the same order, each rank before a step of its own. If a sum asks for something
// that all ranks do together, a rank must do it before it calls poll() again.
//
// Errors: CommError. Not thread safe.

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "comm/communicator.hpp"

namespace gossamer::apps {

class ControlSync {
 public:
  /// What a rank says at a meeting, and what all ranks have said: counts of ranks.
  struct Status {
    std::int64_t terminate = 0;
    std::int64_t hang_up = 0;
    std::int64_t interrupt = 0;
    /// Requests for a checkpoint and the end of the run.
    std::int64_t preempt = 0;
    /// Ranks that have written their part of a checkpoint.
    std::int64_t written = 0;
    /// Rank 0's clock says that a checkpoint is due.
    std::int64_t checkpoint_due = 0;
    /// A checkpoint could not be saved, and the run must end for that.
    std::int64_t checkpoint_failed = 0;
    /// Steps that a rank has made; told in poll().
    std::int64_t steps = 0;

    [[nodiscard]] std::int64_t num_signals() const {
      return terminate + hang_up + interrupt + preempt;
    }
  };

  /// Collective.
  explicit ControlSync(Communicator& communicator);
  ControlSync(const ControlSync&) = delete;
  ControlSync& operator=(const ControlSync&) = delete;

  [[nodiscard]] bool is_due(std::int64_t step) const { return step >= next_; }
  /// Collective. Tells `own` to the other ranks. Returns the sum over all ranks of the status that
  /// they have told at the meeting before; nothing at the first meeting.
  std::optional<Status> meet(std::int64_t step, const Status& own);
  /// If no sum is under way, begins one with `own`, and returns nothing. Else returns the sum over
  /// all ranks, if all have told theirs. The call after that begins the next sum.
  std::optional<Status> poll(const Status& own);
  /// Collective: waits until the last sum has arrived, and forgets it. Steps may then be counted
  /// anew.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kNumNumbers = 9;

  /// Begins a sum. `step_us`: the microseconds of a step.
  void begin_sum(const Status& own, std::int64_t step_us);
  /// Waits for the sum under way.
  Status end_sum();

  Communicator& communicator_;
  /// The blocks of the sum that is under way. The operation owns them, too.
  struct Numbers {
    std::array<std::int64_t, kNumNumbers> own{};
    std::array<std::int64_t, kNumNumbers> sum{};
  };
  std::shared_ptr<Numbers> numbers_;
  Request request_;
  /// The sum over all ranks of the microseconds of a step, at the last meeting.
  std::int64_t sum_us_ = 0;
  Clock::time_point last_time_ = Clock::now();
  std::int64_t last_step_ = 0;
  std::int64_t every_ = 1;
  std::int64_t next_ = 0;
};

}  // namespace gossamer::apps
