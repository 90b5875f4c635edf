#pragma once
// The tables of optimizers and learning-rate schedules. To add an optimizer, write its file in
// rules/, and add its row to every_optimizer.hpp. To add a schedule, write its file, declare its
// factory in registry.cpp, and add a row there. Thread safe: the tables are constant.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.hpp"
#include "base/registry.hpp"
#include "optim/optimizer.hpp"
#include "optim/schedule.hpp"

namespace gossamer {

struct OptimizerEntry {
  std::string_view name;
  std::string_view summary;
  /// The options that `make` reads.
  std::span<const OptionEntry> options;
  std::unique_ptr<Optimizer> (*make)(const Options& options);
};

std::span<const OptimizerEntry> optimizer_table();
/// The names of the table, then the names of `own`, a user's rows.
std::vector<std::string> optimizer_names(std::span<const OptimizerEntry> own = {});

inline constexpr ChoiceOption kOptimizerName{
    "name", "the rule of an update", {.fallback = "accum_adamw", .names = [] {
                                        return optimizer_names();
                                      }}};

/// Makes the optimizer called `name` (with `-` or `_`), of the table or of `own`, a user's rows.
/// Throws ConfigError for an unknown name or a wrong option.
std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const Options& options = Options(),
                                          std::span<const OptimizerEntry> own = {});

struct ScheduleEntry {
  std::string_view name;
  std::string_view summary;
  /// The options that `make` reads.
  std::span<const OptionEntry> options;
  std::unique_ptr<Schedule> (*make)(const ScheduleBase& base, const Options& options);
};

std::span<const ScheduleEntry> schedule_table();
std::vector<std::string> schedule_names();
/// Makes the schedule called `name` (with `-` or `_`). Throws ConfigError for an unknown name or a
/// wrong option.
std::unique_ptr<Schedule> make_schedule(std::string_view name, const ScheduleBase& base,
                                        const Options& options = Options());

}  // namespace gossamer
