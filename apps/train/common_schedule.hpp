#pragma once
// The learning rate of ranks that do not go in step. A schedule counts the steps of the whole run,
// and an asynchronous run counts the mean number of steps of all ranks. A rank learns this number
// now and then. In between it adds the steps that it has made since.
//
// Thread safety: the rank's own thread only.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "optim/schedule.hpp"

namespace gossamer::apps {

class CommonSchedule : public Schedule {
 public:
  /// `total_steps` >= 1: the steps of the run.
  CommonSchedule(std::shared_ptr<const Schedule> schedule, std::int64_t total_steps)
      : schedule_(std::move(schedule)), last_step_(total_steps - 1) {}

  /// Tells that the ranks have made `common_steps` steps in the mean, and this rank `own_steps`.
  void set(std::int64_t common_steps, std::int64_t own_steps) {
    common_steps_ = common_steps;
    own_steps_ = own_steps;
  }
  /// `completed_steps`: those of this rank. Behind the end of the run the rate is that of its last
  /// step.
  [[nodiscard]] double lr(std::int64_t completed_steps) const override {
    const std::int64_t step = common_steps_ + completed_steps - own_steps_;
    return schedule_->lr(std::clamp(step, std::int64_t{0}, last_step_));
  }

 private:
  std::shared_ptr<const Schedule> schedule_;
  std::int64_t last_step_;
  std::int64_t common_steps_ = 0;
  std::int64_t own_steps_ = 0;
};

}  // namespace gossamer::apps
