#pragma once
// Shows the progress of a running study. On a terminal it draws one bar over all runs. Elsewhere it
// prints a line when a run ends, and now and then one in between.

#include <chrono>
#include <cstdint>
#include <string>

#include "apps/lab/study/study_table.hpp"
#include "apps/records/progress_line.hpp"

namespace gossamer::apps {

class StudyProgress {
 public:
  /// `mode` as in ProgressLine. `num_runs` counts all runs, `num_to_do` the runs that have not
  /// finished yet.
  struct Setup {
    std::string mode;
    Logger logger;
    std::int64_t num_runs = 0;
    std::int64_t num_to_do = 0;
  };
  explicit StudyProgress(const Setup& setup);

  /// Tells that a run begins. `number` counts all runs, from 1.
  void begin(std::int64_t number, const std::string& name);
  /// Shows the state of the current run.
  void show(const ProgressState& state);
  void end(const StudyRow& row);
  /// Ends the line of the bar, so that later output starts on a new line.
  void end_line() { progress_.end_line(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// Time until all runs are done, if the rest goes as fast as the part done so far. `part` of the
  /// current run is done, 0 to 1.
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
