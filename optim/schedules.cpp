// The built-in schedules. `cosine_with_warmup` is decent-dp's formula up to t_max. Its cosine part
// is equation 5 of Loshchilov and Hutter (2017), without restarts; after t_max the rate stays.

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

/// The fall of the rate after the warm-up. It ends once: a run that goes on keeps the last rate.
struct Fall {
  std::int64_t begin = 0;
  std::int64_t steps = 1;

  /// How much of the fall is over, 0 to 1.
  [[nodiscard]] double part(std::int64_t s) const {
    return std::min(1.0, static_cast<double>(s - begin) / static_cast<double>(steps));
  }
};

/// By default the fall takes the rest of the run.
Fall read_fall(const Options& options, const ScheduleBase& base, const Warmup& climb) {
  const auto given = options.read(warmup::kStepsAfter);
  return {climb.steps, given.value_or(std::max<std::int64_t>(1, base.total_steps - climb.steps))};
}

}  // namespace

std::unique_ptr<Schedule> make_constant_schedule(const ScheduleBase& base, const Options&) {
  return make([lr = base.lr](std::int64_t) { return lr; });
}

std::unique_ptr<Schedule> make_cosine_schedule(const ScheduleBase& base, const Options& options) {
  const Warmup warmup = read_warmup(options);
  const Fall fall = read_fall(options, base, warmup);
  const double eta_min = options.read(cosine::kEnd);
  return make([=, lr = base.lr](std::int64_t s) {
    if (s < warmup.steps) return lr * warmup.factor(s);
    return eta_min + (lr - eta_min) * (1.0 + std::cos(std::numbers::pi * fall.part(s))) / 2.0;
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
  const Fall fall = read_fall(options, base, warmup);
  const double end = options.read(linear::kEnd);
  return make([=, lr = base.lr](std::int64_t s) {
    if (s < warmup.steps) return lr * warmup.factor(s);
    return lr * (1.0 - (1.0 - end) * fall.part(s));
  });
}

}  // namespace gossamer
