#pragma once
// The figures at the end of a run: a record of metrics.jsonl, and a table on stdout.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/evaluation.hpp"
#include "apps/train/run_folder.hpp"

namespace gossamer::apps {

/// Fields that end in `_ms` are means over ranks, per step.
struct Summary {
  int world_size = 1;
  std::int64_t steps = 0;
  Evaluation evaluation;
  /// Seconds in training steps, without logging and evaluation; mean over ranks.
  double train_s = 0.0;
  /// All ranks together.
  double samples_per_s = 0.0;
  double forward_ms = 0.0;
  /// Without waiting and update, which happen inside the backward pass.
  double backward_ms = 0.0;
  double wait_ms = 0.0;
  double update_ms = 0.0;
  /// The least number of bytes that a rank has to send, mean over ranks; see PipelineMetrics.
  double bytes_sent_per_step = 0.0;
  /// All ranks together; see PipelineMetrics.
  std::int64_t num_wide_differences = 0;
  /// The same times of each rank, in rank order, and the time of the whole step.
  std::vector<double> rank_step_ms = {};
  std::vector<double> rank_forward_ms = {};
  std::vector<double> rank_backward_ms = {};
  std::vector<double> rank_wait_ms = {};
  std::vector<double> rank_update_ms = {};
};

/// The record of the kind `final`.
Json to_json(const Summary& summary);
/// Prints the table to stdout. `folder` is the folder of the run.
void print_summary(const Summary& summary, const std::string& folder);

}  // namespace gossamer::apps
