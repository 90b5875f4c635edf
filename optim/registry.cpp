#include "optim/registry.hpp"

#include <array>
#include <tuple>

#include "optim/every_optimizer.hpp"
#include "optim/schedule_options.hpp"
#include "optim/sweep.hpp"
#include "optim/tracker.hpp"

namespace gossamer {

std::unique_ptr<Schedule> make_constant_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_cosine_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_step_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_linear_schedule(const ScheduleBase& base, const Options& options);

namespace {

struct BuildPlain {
  template <class Rule>
  std::unique_ptr<Optimizer> operator()(const Rule& rule) const {
    return make_rule_optimizer(rule);
  }
};

template <class Row>
std::unique_ptr<Optimizer> make_of(const Options& options) {
  return Row::make(options, BuildPlain());
}

template <class... Rows>
constexpr std::array<OptimizerEntry, sizeof...(Rows)> entries_of(
    const std::tuple<Rows...>& /*rows*/) {
  return {OptimizerEntry{.name = Rows::kName,
                         .summary = Rows::kSummary,
                         .options = Rows::kOptions,
                         .make = make_of<Rows>}...};
}

constexpr std::array kOptimizers = entries_of(EveryOptimizer());

constexpr std::array kSchedules = {
    ScheduleEntry{"constant", "the same in every step", {}, make_constant_schedule},
    ScheduleEntry{"cosine_with_warmup", "linear warm-up, then half a cosine to eta_min",
                  cosine::kOptions, make_cosine_schedule},
    ScheduleEntry{"step", "times gamma after every step_size steps", step::kOptions,
                  make_step_schedule},
    ScheduleEntry{"linear", "linear warm-up, then a line down to end_factor", linear::kOptions,
                  make_linear_schedule},
};

}  // namespace

std::span<const OptimizerEntry> optimizer_table() { return kOptimizers; }
std::vector<std::string> optimizer_names(std::span<const OptimizerEntry> own) {
  return names_of(with_own(optimizer_table(), own));
}

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const Options& options,
                                          std::span<const OptimizerEntry> own) {
  return row_of(with_own(optimizer_table(), own), "optimizer", name).make(options);
}

std::unique_ptr<Optimizer> make_tracker(double beta) {
  return make_rule_optimizer(TrackerRule{beta});
}

std::span<const ScheduleEntry> schedule_table() { return kSchedules; }
std::vector<std::string> schedule_names() { return names_of(kSchedules); }

std::unique_ptr<Schedule> make_schedule(std::string_view name, const ScheduleBase& base,
                                        const Options& options) {
  return row_of(kSchedules, "learning-rate schedule", name).make(base, options);
}

}  // namespace gossamer
