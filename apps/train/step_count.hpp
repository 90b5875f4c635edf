#pragma once
// Counts the steps of a run, and knows the learning rate of a rank's steps.
//
// If the ranks go in step, all of them have made the same number of steps. Otherwise the run counts
// the mean number of steps of all ranks. A rank learns this number now and then (set_mean_steps()).
// In between it adds the steps that it has made since, for its learning rate alone.
//
// Thread safety: the rank's own thread only.

#include <cstdint>
#include <memory>

#include "base/state_visitor.hpp"
#include "optim/schedule.hpp"

namespace gossamer::apps {

class StepCount {
 public:
  /// `total` >= 1: the steps of the run. `schedule` counts them.
  StepCount(std::int64_t total, bool in_step, std::shared_ptr<const Schedule> schedule);

  /// The ranks go in step.
  [[nodiscard]] bool in_step() const { return common_ == nullptr; }
  [[nodiscard]] std::int64_t total() const { return total_; }
  /// Steps of the run so far.
  [[nodiscard]] std::int64_t run() const { return run_; }
  /// Steps of this rank so far.
  [[nodiscard]] std::int64_t own() const { return own_; }
  [[nodiscard]] bool is_over() const { return run_ >= total_; }
  /// True if the run has reached or passed a multiple of `every` since mark_handled(); never for 0.
  [[nodiscard]] bool has_passed(std::int64_t every) const;
  /// True if has_passed(every), and at the last step; never for 0.
  [[nodiscard]] bool is_due(std::int64_t every) const;

  /// The learning rate of this rank's steps. Behind the end of an asynchronous run the rate is that
  /// of its last step.
  [[nodiscard]] std::shared_ptr<const Schedule> schedule() const { return schedule_; }

  /// This rank has made a step.
  void add();
  /// Before the next add() or set_mean_steps(): what has passed until now has been dealt with.
  void mark_handled() { handled_ = run_; }
  /// The steps at the last mark_handled().
  [[nodiscard]] std::int64_t handled() const { return handled_; }
  /// The ranks go in step, and the run has other steps than it seemed to have at its beginning.
  void replan(std::int64_t total, std::shared_ptr<const Schedule> schedule);
  /// The ranks go in step. From now on a learning rate is the schedule's times `factor`.
  void scale_lr(double factor);
  /// The factor of the schedule; 1 at first.
  [[nodiscard]] double lr_scale() const;
  /// The ranks go in step, and this one has as many steps behind it as the others.
  void catch_up(std::int64_t steps, std::int64_t settled);
  /// The ranks do not go in step, and have made `steps` steps in the mean. `updates`: the updates
  /// of this rank.
  void set_mean_steps(std::int64_t steps, std::int64_t updates);

  /// Shows the visitor the counts.
  void visit(StateVisitor& visitor);
  /// After visit() has loaded the counts. `of_this_rank`: the counts are this rank's own. After
  /// --reshape they are means over several ranks.
  void resume(bool of_this_rank, std::int64_t updates);

 private:
  class CommonSchedule;
  class LaterSchedule;

  std::int64_t total_;
  /// The schedule; null where the ranks do not go in step.
  std::shared_ptr<LaterSchedule> later_;
  /// Null: the ranks go in step.
  std::shared_ptr<CommonSchedule> common_;
  std::shared_ptr<const Schedule> schedule_;
  std::int64_t run_ = 0;
  std::int64_t own_ = 0;
  /// run_ at mark_handled().
  std::int64_t handled_ = 0;
};

}  // namespace gossamer::apps
