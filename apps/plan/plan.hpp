#pragma once
// Plans which topology suits a cluster. The plan lists gossip on every topology that fits the
// world, and all-reduce; or the algorithms that the user asks for, each on every topology that
// suits it. Each row has a predicted time of a step (iteration_model.hpp) and the number of rounds
// until the ranks are within a given factor of their mean (topology/spectrum.hpp). The rows are
// ranked by the time of a step, or by that time and the number of rounds together.
//
// For a cluster in several regions the plan also has local-sgd and hierarchical with longer and
// longer periods, and hierarchical with a region as its node where regions are equally large.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/plan/iteration_model.hpp"
#include "core/algorithm.hpp"
#include "core/plug_ins.hpp"
#include "optim/codec.hpp"
#include "optim/optimizer.hpp"
#include "topology/spectrum.hpp"

namespace gossamer::apps {

enum class RankBy : std::uint8_t {
  /// Rounds to the target times the time of a step.
  kTarget,
  kStep,
  /// Rows whose steps take at most `budget` longer than steps without communication come first,
  /// ordered as by kTarget. The others follow, ordered as by kStep.
  kBudget,
};

/// The largest world that a plan allows, in ranks.
inline constexpr int kMostPlannedRanks = 4096;

struct PlanOptions {
  /// make_plan() chooses the numbers of steps itself.
  StepModel model = {};
  /// The ranks are at the target when their distance from the mean has shrunk by this factor.
  double target = 1e-3;
  RankBy rank_by = RankBy::kTarget;
  /// For kBudget: seconds that communication may add to a step, divided by the seconds of a step
  /// without it.
  double budget = 0.1;
  /// The algorithms of the rows. Empty: gossip and all-reduce. If the rounds of one row are not
  /// known, kStep orders all of them.
  std::vector<AlgorithmChoice> algorithms = {};
  /// What the algorithms' messages hold; null: float32 elements.
  const Codec* codec = nullptr;
  /// The optimizer of `algorithms`, which may need its states; null: AdamW.
  std::shared_ptr<const Optimizer> optimizer = {};
  /// Names may mean these rows, too. The plan has a row for each of these topologies that fits.
  PlugIns own = {};
};

struct PlanRow {
  /// The algorithm and topology sections of a configuration.
  std::string yaml = {};
  /// A short name: `base-k, k: 3`, or `late_average {every: 4}`.
  std::string label = {};
  StepPrediction step = {};
  /// Rounds to the target. Nothing: the target is never reached, or the number of rounds is
  /// unknown.
  std::optional<RoundCount> rounds = std::nullopt;
  /// Seconds to the target; nothing where `rounds` is nothing.
  std::optional<double> target_s = std::nullopt;
};

struct Plan {
  /// The best first.
  std::vector<PlanRow> rows = {};
  /// Seconds of a step without communication.
  double local_s = 0.0;
  /// One sentence.
  std::string recommendation = {};
};

/// The same options give the same plan. Throws ConfigError for an impossible world, model, target,
/// or algorithm.
Plan make_plan(const PlanOptions& options);

/// The sizes in bytes of the buckets of a model of `model_bytes`. Merges buckets where the world is
/// too large to follow them all. Throws ConfigError.
std::vector<double> planned_buckets(double model_bytes, double bucket_bytes, int world_size);

nlohmann::ordered_json to_json(const Plan& plan);
/// A table, and the recommendation with the configuration to paste.
std::string to_text(const Plan& plan, const PlanOptions& options);

}  // namespace gossamer::apps
