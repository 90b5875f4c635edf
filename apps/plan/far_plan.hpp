#pragma once
// Chooses how to train over given links: how often the ranks average, whether all of them or pairs
// do, and what their messages hold. The rarer and smaller the messages, the shorter the steps and
// the more accuracy is lost at equal steps. So a far plan has, for every way to exchange, the most
// frequent exchanges whose steps take at most a budget longer than steps without communication. It
// takes the way that we expect to lose least: docs/far_apart.md has our measurements, which are
// those of one small model with averages every 1 to 40 steps.

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/plan/plan.hpp"

namespace gossamer::apps {

struct FarRow {
  /// As `outer in pairs`.
  std::string way = {};
  std::string codec = {};
  /// Steps between two exchanges; 1: one in every step.
  std::int64_t every = 1;
  /// Steps that an exchange may travel; 0: ranks wait in the step that starts it.
  std::int64_t late = 1;
  StepPrediction step = {};
  /// Seconds of a step without communication, divided by those of this step.
  double efficiency = 0.0;
  /// Seconds that an exchange of the whole model takes, and that `late` steps without
  /// communication do.
  double exchange_s = 0.0;
  double allowed_s = 0.0;
  /// True: the steps are within the budget.
  bool fits = false;
  /// By how much we expect the loss to be above that of all-reduce after equally many steps.
  double expected_gap = 0.0;
  /// False: we expect the ranks to lose as much without any exchange.
  bool helps = true;
  /// The sections of a configuration.
  std::string yaml = {};
};

struct FarPlan {
  /// In rising order of the expected gap; those that do not fit come last.
  std::vector<FarRow> rows = {};
  /// Seconds of a step without communication.
  double local_s = 0.0;
  /// One sentence.
  std::string recommendation = {};
};

/// `options.algorithms`, `codec`, `target` and `rank_by` do not count. Throws ConfigError for an
/// impossible world or model.
FarPlan make_far_plan(const PlanOptions& options);

nlohmann::ordered_json to_json(const FarPlan& plan);
/// A table, and the recommendation with the configuration to paste.
std::string to_text(const FarPlan& plan);

}  // namespace gossamer::apps
