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

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/lab/plan/iteration_model.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/algorithms/plug_ins.hpp"
#include "optim/codec.hpp"
#include "optim/optimizer.hpp"
#include "topology/spectrum.hpp"

namespace gossamer::apps {

/// The largest world that a plan allows, in ranks.
inline constexpr int kMostPlannedRanks = 4096;

/// A row counts the rounds until the ranks' distance from their mean has shrunk by this factor.
inline constexpr double kPlannedTarget = 1e-3;

struct PlanOptions {
  /// make_plan() chooses the numbers of steps itself.
  StepModel model = {};
  /// Seconds that communication may add to a step, divided by the seconds of a step without it.
  double budget = 0.1;
  /// The models lie on GPUs, where few algorithms send encoded messages.
  bool on_gpu = false;
  /// The algorithms of the rows; empty: all ways. An algorithm without options has its ways.
  std::vector<AlgorithmChoice> algorithms = {};
  /// The codec of the rows; null: that of each way, and float32 elements for other algorithms.
  const Codec* codec = nullptr;
  /// The rows have float32 elements alone. Not together with `codec`.
  bool is_plain = false;
  /// The optimizer, whose states some algorithms send; null: AdamW.
  std::shared_ptr<const Optimizer> optimizer = {};
  /// Names may mean these rows, too. The plan has a row for each of these topologies that fits.
  PlugIns own = {};
};

struct PlanRow {
  /// As `outer in pairs`, or an algorithm with its options.
  std::string exchange = {};
  /// A topology with its options, as `base-k, k: 3`; empty: none.
  std::string topology = {};
  std::string codec = {};
  /// Steps after which the exchanges of a bucket repeat; 1: every step has one.
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
  /// How far we expect the loss to end above that of all-reduce after equally many steps. Nothing:
  /// we have measured nothing like it.
  std::optional<double> expected_gap = std::nullopt;
  /// Rounds to kPlannedTarget. Nothing: the ranks never come so near, or the number is unknown.
  std::optional<RoundCount> rounds = std::nullopt;
  /// The sections of a configuration.
  std::string yaml = {};

  /// False: we expect the ranks to lose as much without any exchange.
  [[nodiscard]] bool helps() const;
  /// As `outer of all, topk, every 2`.
  [[nodiscard]] std::string label() const;
};

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
