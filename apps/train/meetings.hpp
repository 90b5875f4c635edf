#pragma once
// Ranks tell one another about signals and other events between two steps, without waiting: a
// meeting starts a sum over all ranks, and the next meeting reads it. All ranks therefore learn the
// same facts before the same step, although some ranks are ahead of others.
//
// Protocol, the same on all ranks: before every step, if is_due(step), call meet(). At the end call
// leave(). Meetings are about a quarter of a second apart, by the ranks' mean step time. Errors:
// CommError. Not thread safe.

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "comm/communicator.hpp"

namespace gossamer::apps {

class Meetings {
 public:
  /// What a rank says at a meeting, and what all ranks have said: counts of ranks.
  struct News {
    std::int64_t terminate = 0;
    std::int64_t interrupt = 0;
    /// Requests for a checkpoint and the end of the run.
    std::int64_t preempt = 0;
    /// Ranks that have written their part of a checkpoint.
    std::int64_t written = 0;
    /// Rank 0's clock says that a checkpoint is due.
    std::int64_t checkpoint_due = 0;
    /// A checkpoint could not be saved, and the run must end for that.
    std::int64_t checkpoint_failed = 0;

    [[nodiscard]] std::int64_t num_signals() const { return terminate + interrupt + preempt; }
  };

  /// Collective.
  explicit Meetings(Communicator& communicator);
  Meetings(const Meetings&) = delete;
  Meetings& operator=(const Meetings&) = delete;

  [[nodiscard]] bool is_due(std::int64_t step) const { return step >= next_; }
  /// Collective. Tells `own` to the other ranks. Returns the sum over all ranks of the news that
  /// they have told at the meeting before; nothing at the first meeting.
  std::optional<News> meet(std::int64_t step, const News& own);
  /// Collective: waits until the last sum has arrived.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kNumNumbers = 7;

  std::unique_ptr<Communicator> communicator_;
  /// The blocks of the sum that is under way. The operation owns them, too.
  struct Numbers {
    std::array<std::int64_t, kNumNumbers> own{};
    std::array<std::int64_t, kNumNumbers> sum{};
  };
  std::shared_ptr<Numbers> numbers_;
  Request request_;
  Clock::time_point last_time_ = Clock::now();
  std::int64_t last_step_ = 0;
  std::int64_t every_ = 1;
  std::int64_t next_ = 0;
};

}  // namespace gossamer::apps
