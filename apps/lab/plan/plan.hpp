#pragma once
// Which topology for which cluster: every one that fits a world, and all-reduce, with the predicted
// time of a step (iteration_model.hpp) and the rounds after which the ranks are within a given
// factor of their mean (topology/spectrum.hpp), ranked by either or both together.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/lab/plan/iteration_model.hpp"
#include "topology/spectrum.hpp"

namespace gossamer::apps {

enum class RankBy : std::uint8_t {
  /// Rounds to the target times the time of a step.
  kTarget,
  kStep,
};

/// The most ranks that are planned for.
inline constexpr int kMostPlannedRanks = 4096;

struct PlanOptions {
  /// The numbers of steps are chosen here.
  StepModel model = {};
  /// Ranks are at the target when their distance from the mean has shrunk by this factor.
  double target = 1e-3;
  RankBy rank_by = RankBy::kTarget;
};

struct PlanRow {
  /// The algorithm and topology sections of a configuration.
  std::string yaml = {};
  /// The same in a few words: `base-k, k: 3`.
  std::string label = {};
  StepPrediction step = {};
  /// Nothing: the target is never reached, or how many rounds it takes is not known.
  std::optional<RoundCount> rounds = std::nullopt;
  /// Seconds; as `rounds`.
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

/// The same for the same options. Throws ConfigError for a world, model or target that cannot be.
Plan make_plan(const PlanOptions& options);

/// The buckets of a model of `model_bytes`, merged where a large world could not follow them all.
/// Throws ConfigError.
std::vector<double> planned_buckets(double model_bytes, double bucket_bytes, int world_size);

nlohmann::ordered_json to_json(const Plan& plan);
/// A table and the recommendation with the configuration to paste.
std::string to_text(const Plan& plan, const PlanOptions& options);

}  // namespace gossamer::apps
