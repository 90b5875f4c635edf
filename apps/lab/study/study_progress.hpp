#pragma once
// What a person sees of a running study: one bar over all its runs on a terminal; elsewhere a line
// when a run ends, and now and then one in between.

#include <chrono>
#include <cstdint>
#include <string>

#include "apps/lab/study/study_table.hpp"
#include "apps/train/progress_line.hpp"

namespace gossamer::apps {

class StudyProgress {
 public:
  /// `mode` as ProgressLine takes it. `num_runs`: all; `num_to_do`: those that have not finished
  /// yet.
  struct Setup {
    std::string mode;
    Logger logger;
    std::int64_t num_runs = 0;
    std::int64_t num_to_do = 0;
  };
  explicit StudyProgress(const Setup& setup);

  /// A run begins, the `number`-th of all, from 1 on.
  void begin(std::int64_t number, const std::string& name);
  /// The run's own news.
  void show(const ProgressState& state);
  void end(const StudyRow& row);
  /// Ends the bar's line, so that what follows starts on a new one.
  void end_line() { progress_.end_line(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// Until all runs are done, if the rest takes as long as what was done; `part` of the current run
  /// is done, 0 to 1.
  [[nodiscard]] std::string time_left(double part) const;

  ProgressLine progress_;
  std::int64_t num_runs_;
  std::int64_t num_to_do_;
  std::int64_t num_done_ = 0;
  std::int64_t number_ = 0;
  std::string name_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_line_ = begin_;
};

}  // namespace gossamer::apps
