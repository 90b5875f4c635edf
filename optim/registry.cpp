#include "optim/registry.hpp"

#include <array>

#include "base/registry.hpp"
#include "optim/rules/accum_adam.hpp"
#include "optim/rules/adam.hpp"
#include "optim/rules/sgd.hpp"
#include "optim/sweep.hpp"

namespace gossamer {

std::unique_ptr<Schedule> make_constant_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_cosine_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_step_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_linear_schedule(const ScheduleBase& base, const Options& options);

namespace {

constexpr std::array kOptimizers = {
    OptimizerEntry{"sgd", "gradient descent with momentum or Nesterov momentum", make_sgd},
    OptimizerEntry{"adam", "Adam, weight decay added to the gradient", make_adam},
    OptimizerEntry{"adamw", "Adam, decoupled weight decay", make_adamw},
    OptimizerEntry{"accum_adam", "Adam whose moments move once per accum_iter steps",
                   make_accum_adam},
    OptimizerEntry{"accum_adamw", "the same with decoupled weight decay", make_accum_adamw},
};

constexpr std::array kSchedules = {
    ScheduleEntry{"constant", "the same in every step", make_constant_schedule},
    ScheduleEntry{"cosine_with_warmup", "linear warm-up, then half a cosine to eta_min",
                  make_cosine_schedule},
    ScheduleEntry{"step", "times gamma after every step_size steps", make_step_schedule},
    ScheduleEntry{"linear", "linear warm-up, then a line down to end_factor", make_linear_schedule},
};

}  // namespace

std::span<const OptimizerEntry> optimizer_table() { return kOptimizers; }
std::vector<std::string> optimizer_names() { return names_of(kOptimizers); }

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const Options& options) {
  return row_of(kOptimizers, "optimizer", name).make(options);
}

std::span<const ScheduleEntry> schedule_table() { return kSchedules; }
std::vector<std::string> schedule_names() { return names_of(kSchedules); }

std::unique_ptr<Schedule> make_schedule(std::string_view name, const ScheduleBase& base,
                                        const Options& options) {
  return row_of(kSchedules, "learning-rate schedule", name).make(base, options);
}

}  // namespace gossamer
