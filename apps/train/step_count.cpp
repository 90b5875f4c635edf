#include "apps/train/step_count.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::apps {

/// The learning rate of a rank that does not go in step.
class StepCount::CommonSchedule : public Schedule {
 public:
  CommonSchedule(std::shared_ptr<const Schedule> schedule, std::int64_t total)
      : schedule_(std::move(schedule)), last_step_(total - 1) {}

  /// The ranks have made `steps` steps in the mean, and this rank `updates` of its own.
  void set(std::int64_t steps, std::int64_t updates) { ahead_ = steps - updates; }
  [[nodiscard]] double lr(std::int64_t updates) const override {
    return schedule_->lr(std::clamp(ahead_ + updates, std::int64_t{0}, last_step_));
  }

 private:
  std::shared_ptr<const Schedule> schedule_;
  std::int64_t last_step_;
  /// Steps of the run less updates of this rank.
  std::int64_t ahead_ = 0;
};

/// A schedule that may be replaced, and scaled.
class StepCount::LaterSchedule : public Schedule {
 public:
  explicit LaterSchedule(std::shared_ptr<const Schedule> schedule)
      : schedule_(std::move(schedule)) {}
  void replace(std::shared_ptr<const Schedule> schedule) { schedule_ = std::move(schedule); }
  void scale(double factor) { factor_ = factor; }
  [[nodiscard]] double scale() const { return factor_; }
  [[nodiscard]] double lr(std::int64_t updates) const override {
    return factor_ * schedule_->lr(updates);
  }

 private:
  std::shared_ptr<const Schedule> schedule_;
  double factor_ = 1.0;
};

StepCount::StepCount(std::int64_t total, bool in_step, std::shared_ptr<const Schedule> schedule)
    : total_(total),
      later_(in_step ? std::make_shared<LaterSchedule>(schedule) : nullptr),
      common_(in_step ? nullptr : std::make_shared<CommonSchedule>(schedule, total)),
      schedule_(later_) {
  if (common_) schedule_ = common_;
}

void StepCount::replan(std::int64_t total, std::shared_ptr<const Schedule> schedule) {
  total_ = total;
  later_->replace(std::move(schedule));
}

void StepCount::scale_lr(double factor) { later_->scale(factor); }

double StepCount::lr_scale() const { return later_ ? later_->scale() : 1.0; }

bool StepCount::has_passed(std::int64_t every) const {
  return every > 0 && run_ / every > handled_ / every;
}

bool StepCount::is_due(std::int64_t every) const {
  return every > 0 && (has_passed(every) || run_ == total_);
}

void StepCount::add() {
  ++own_;
  if (in_step()) run_ = own_;
}

void StepCount::catch_up(std::int64_t steps, std::int64_t settled) {
  own_ = steps;
  run_ = steps;
  handled_ = settled;
}

void StepCount::set_mean_steps(std::int64_t steps, std::int64_t updates) {
  run_ = std::min(steps, total_);
  common_->set(run_, updates);
}

void StepCount::visit(StateVisitor& visitor) {
  constexpr const char* kStep = "train/step";
  // A loop in Python counts the model's steps alone.
  visitor.number(visitor.loads() && !visitor.holds(kStep) ? "run/steps" : kStep, run_);
  if (!in_step()) visitor.number("train/own_step", own_);
}

void StepCount::resume(bool of_this_rank, std::int64_t updates) {
  if (in_step() || !of_this_rank) own_ = run_;
  handled_ = run_;
  if (!in_step()) common_->set(run_, updates);
}

}  // namespace gossamer::apps
