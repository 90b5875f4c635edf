#pragma once
// A schedule gives the learning rate as a function of the number of completed steps. Schedules are
// thread safe, and all but ExternalSchedule are immutable.

#include <atomic>
#include <cstdint>
#include <memory>

namespace gossamer {

class Schedule {
 public:
  virtual ~Schedule() = default;
  /// The learning rate of the step that follows `completed_steps` completed ones.
  [[nodiscard]] virtual double lr(std::int64_t completed_steps) const = 0;
};

/// The rate that the caller gives before every step, such as a schedule of a Python program.
/// Knows nothing of other steps. Thread safe.
class ExternalSchedule : public Schedule {
 public:
  explicit ExternalSchedule(double lr = 0.0) : lr_(lr) {}
  void tell(double lr) { lr_.store(lr); }
  [[nodiscard]] double lr(std::int64_t /*completed_steps*/) const override { return lr_.load(); }

 private:
  std::atomic<double> lr_;
};

/// The numbers that every schedule gets in addition to its own options.
struct ScheduleBase {
  /// The optimizer's learning rate.
  double lr = 1e-3;
  /// Steps of the whole run; some options have defaults that depend on it.
  std::int64_t total_steps = 1;
};

}  // namespace gossamer
