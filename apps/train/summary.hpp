#pragma once
// The table at the end of a run.

#include <cstdint>
#include <string>

#include "apps/train/run_folder.hpp"

namespace gossamer::apps {

/// Times are means over ranks, in milliseconds per step.
struct Summary {
  int world_size = 1;
  std::int64_t steps = 0;
  double accuracy_mean_model = 0.0;
  double accuracy_worst_local = 0.0;
  double accuracy_mean_local = 0.0;
  double loss_mean_model = 0.0;
  /// Root mean square over ranks.
  double consensus_distance = 0.0;
  /// Seconds in training steps, without logging and evaluation.
  double train_s = 0.0;
  double samples_per_s = 0.0;
  double forward_ms = 0.0;
  /// Without waiting and update, which happen inside the backward pass.
  double backward_ms = 0.0;
  double wait_ms = 0.0;
  double update_ms = 0.0;
  /// By one rank, at the least; see PipelineMetrics.
  double bytes_sent_per_step = 0.0;
};

/// The record of kind `final`.
Json to_json(const Summary& summary);
/// To stdout.
void print_summary(const Summary& summary, const std::string& folder);

}  // namespace gossamer::apps
