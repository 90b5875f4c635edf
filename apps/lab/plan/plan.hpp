#pragma once
// Plans how to train on a cluster: with which algorithm, topology and codec, and how often the
// ranks exchange. The plan has a row for every way to exchange (ways.hpp) on every topology that
// suits it, or for the algorithms and the codec that the user asks for. Every row has a predicted
// time of a step (iteration_model.hpp). A way that may be rare has the shortest period whose steps
// stay within a budget.
//
// The first row is the advice: of the rows whose steps are within the budget, we expect it to lose
// least against all-reduce at equal steps. Rows whose loss we have not measured come later, and
// rows above the budget come last, in the order of their steps.
//
// For a cluster in several regions the plan also has hierarchical topologies with longer and longer
// periods, and with a region as their node where regions are equally large.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/lab/plan/plan_row.hpp"

namespace gossamer::apps {

/// The largest world that a plan allows, in ranks.
inline constexpr int kMostPlannedRanks = 4096;

struct Plan {
  /// The best first.
  std::vector<PlanRow> rows = {};
  /// Seconds of a step without communication.
  double local_s = 0.0;
  /// Some sentences: what to take, and what it costs.
  std::string recommendation = {};
  /// Sentences about limits that the advice may meet.
  std::vector<std::string> warnings = {};
};

/// The same options give the same plan. Throws ConfigError for an impossible world, model, or
/// algorithm.
Plan make_plan(const PlanOptions& options);

/// The sizes in bytes of the buckets of a model of `model_bytes`. Merges buckets where the world is
/// too large to follow them all. Throws ConfigError.
std::vector<double> planned_buckets(double model_bytes, double bucket_bytes, int world_size);

nlohmann::ordered_json to_json(const Plan& plan);
/// A table, and the recommendation with the configuration to paste. The table has the best topology
/// of every way, and all topologies of the algorithms that `options` names.
std::string to_text(const Plan& plan, const PlanOptions& options);

}  // namespace gossamer::apps
