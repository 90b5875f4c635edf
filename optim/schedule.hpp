#pragma once
// A schedule gives the learning rate as a function of the number of completed steps. Schedules are
// immutable and thread safe.

#include <cstdint>
#include <memory>

namespace gossamer {

class Schedule {
 public:
  virtual ~Schedule() = default;
  /// The learning rate of the step that follows `completed_steps` completed ones.
  [[nodiscard]] virtual double lr(std::int64_t completed_steps) const = 0;
};

/// What every schedule gets in addition to its own options.
struct ScheduleBase {
  /// The optimizer's learning rate.
  double lr = 1e-3;
  /// Steps of the whole run; some options have defaults that depend on it.
  std::int64_t total_steps = 1;
};

}  // namespace gossamer
