// The built-in schedules. `cosine_with_warmup` is decent-dp's formula. Its cosine part is equation
// 5 of Loshchilov and Hutter (2017), without restarts.

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <utility>

#include "base/options.hpp"
#include "optim/schedule.hpp"
#include "optim/schedule_options.hpp"

namespace gossamer {
namespace {

class FunctionSchedule : public Schedule {
 public:
  explicit FunctionSchedule(std::function<double(std::int64_t)> function)
      : function_(std::move(function)) {}
  [[nodiscard]] double lr(std::int64_t completed_steps) const override {
    return function_(completed_steps);
  }

 private:
  std::function<double(std::int64_t)> function_;
};

std::unique_ptr<Schedule> make(std::function<double(std::int64_t)> function) {
  return std::make_unique<FunctionSchedule>(std::move(function));
}

/// A linear climb over `steps` steps that begins at `start` times the learning rate.
struct Warmup {
  std::int64_t steps = 0;
  double start = 0.0;

  [[nodiscard]] double factor(std::int64_t s) const {
    return start + (1.0 - start) * static_cast<double>(s) / static_cast<double>(steps);
  }
};

Warmup read_warmup(const Options& options) {
  return {options.read(warmup::kSteps), options.read(warmup::kStart)};
}

/// Steps after the warm-up; by default the rest of the run.
std::int64_t read_t_max(const Options& options, const ScheduleBase& base, const Warmup& climb) {
  const auto given = options.read(warmup::kStepsAfter);
  return given.value_or(std::max<std::int64_t>(1, base.total_steps - climb.steps));
}

}  // namespace

std::unique_ptr<Schedule> make_constant_schedule(const ScheduleBase& base, const Options&) {
  return make([lr = base.lr](std::int64_t) { return lr; });
}

std::unique_ptr<Schedule> make_cosine_schedule(const ScheduleBase& base, const Options& options) {
  const Warmup warmup = read_warmup(options);
  const std::int64_t t_max = read_t_max(options, base, warmup);
  const double eta_min = options.read(cosine::kEnd);
  return make([=, lr = base.lr](std::int64_t s) {
    if (s < warmup.steps) return lr * warmup.factor(s);
    const double part = static_cast<double>(s - warmup.steps) / static_cast<double>(t_max);
    return eta_min + (lr - eta_min) * (1.0 + std::cos(std::numbers::pi * part)) / 2.0;
  });
}

std::unique_ptr<Schedule> make_step_schedule(const ScheduleBase& base, const Options& options) {
  const std::int64_t size = options.read(step::kSize);
  const double gamma = options.read(step::kGamma);
  return make([=, lr = base.lr](std::int64_t s) {
    return lr * std::pow(gamma, static_cast<double>(s / size));
  });
}

std::unique_ptr<Schedule> make_linear_schedule(const ScheduleBase& base, const Options& options) {
  const Warmup warmup = read_warmup(options);
  const std::int64_t t_max = read_t_max(options, base, warmup);
  const double end = options.read(linear::kEnd);
  return make([=, lr = base.lr](std::int64_t s) {
    if (s < warmup.steps) return lr * warmup.factor(s);
    const double part = static_cast<double>(s - warmup.steps) / static_cast<double>(t_max);
    return lr * (1.0 - (1.0 - end) * std::min(1.0, part));
  });
}

}  // namespace gossamer
