#pragma once
// What every rank measures of its steps, and what the records of a run say of all ranks together.
//
// The ranks gather these figures, each in its own way, and one of them makes the record. No state;
// any thread may call.

#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

namespace gossamer::apps {

/// A rank's figures of the steps since the last record.
struct WindowFigures {
  /// The sum of the losses that are finite, and their number.
  double loss = 0.0;
  double num_losses = 0.0;
  double first_loss = 0.0;
  double samples = 0.0;
  /// Seconds in steps, without logging and evaluation.
  double seconds = 0.0;
  double wait_s = 0.0;
  double steps = 0.0;
  /// Steps since the run began.
  double all_steps = 0.0;
  double num_skipped = 0.0;
};

/// A rank's figures of a whole run.
struct RunFigures {
  double forward_s = 0.0;
  /// The time without waiting and update, which happen inside the backward pass.
  double backward_s = 0.0;
  double wait_s = 0.0;
  double update_s = 0.0;
  double bytes_sent = 0.0;
  double train_s = 0.0;
  double samples = 0.0;
  double num_wide_differences = 0.0;
  double steps = 0.0;
};

template <class Figures>
double sum_of(const std::vector<Figures>& ranks, double Figures::*figure) {
  double sum = 0.0;
  for (const Figures& rank : ranks) sum += rank.*figure;
  return sum;
}

/// The fields of the record of a window that come from the ranks' figures, in rank order.
/// `in_step`: all ranks make the same steps at the same time.
nlohmann::ordered_json window_fields(const std::vector<WindowFigures>& ranks, bool in_step);

/// The figures of a whole run. Fields that end in `_ms` are means over ranks, per step.
struct Summary {
  int world_size = 1;
  std::int64_t steps = 0;
  /// Seconds in training steps, without logging and evaluation; mean over ranks.
  double train_s = 0.0;
  /// Samples per second of all ranks together.
  double samples_per_s = 0.0;
  double forward_ms = 0.0;
  /// The time without waiting and update, which happen inside the backward pass.
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

/// `steps`: the steps of the run.
Summary summary_of(const std::vector<RunFigures>& ranks, std::int64_t steps);
/// The record of the kind `final`, without an evaluation.
nlohmann::ordered_json to_json(const Summary& summary);

}  // namespace gossamer::apps
