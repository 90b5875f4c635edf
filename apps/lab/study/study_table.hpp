#pragma once
// The results of a study: one row per run, and groups over seeds with mean and standard deviation.
// Pure data; nothing here depends on LibTorch.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "apps/lab/study/study_config.hpp"
#include "apps/records/run_folder.hpp"

namespace gossamer::apps {

/// How a run ended. Accuracies are shares, 0 to 1.
struct StudyRow {
  std::string name = {};
  std::string topology = {};
  std::string optimizer = {};
  std::optional<double> dirichlet_alpha = {};
  std::int64_t seed = 1;
  int workers = 1;
  std::int64_t steps = 0;
  double accuracy_mean_model = 0.0;
  double accuracy_worst_local = 0.0;
  double loss_mean_model = 0.0;
  double consensus_distance = 0.0;
  /// The least number of bytes that a worker sends per step; mean over workers.
  double bytes_per_step = 0.0;
  /// Seconds in training steps.
  double train_s = 0.0;
};

/// Makes the row of a run from its record of kind `final`. A number that is null in the record was
/// not finite, and becomes NaN.
StudyRow make_row(const StudyRun& run, const Json& final_record);

struct Moments {
  double mean = 0.0;
  /// The standard deviation of a sample (divided by n - 1); NaN for one value.
  double deviation = std::numeric_limits<double>::quiet_NaN();
};

/// Mean and deviation of at least one value.
Moments moments_of(const std::vector<double>& values);

/// A group of runs that differ only in their seed.
struct StudyGroup {
  std::string topology = {};
  std::string optimizer = {};
  std::optional<double> dirichlet_alpha = {};
  std::int64_t num_seeds = 0;
  Moments accuracy_mean_model = {};
  Moments accuracy_worst_local = {};
  Moments consensus_distance = {};
  Moments bytes_per_step = {};
};

/// Groups the rows, in the order of the groups' first rows.
std::vector<StudyGroup> group_over_seeds(const std::vector<StudyRow>& rows);

/// A header line, then one line per row. Numbers have full precision. Labels need no quotes.
std::string to_csv(const std::vector<StudyRow>& rows);
/// A table with aligned columns, for a terminal.
std::string to_text(const std::vector<StudyGroup>& groups);
std::string to_markdown(const std::vector<StudyGroup>& groups);
Json to_json(const std::vector<StudyRow>& rows);
Json to_json(const std::vector<StudyGroup>& groups);

}  // namespace gossamer::apps
