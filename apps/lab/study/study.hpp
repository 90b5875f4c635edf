#pragma once
// Runs a study: all its runs one after the other, each through the code of `gossamer train` into a
// folder of its own below the study's. A run that has finished with the very same configuration is
// kept, so a study that was stopped goes on where it was; a run that was under way begins anew.
//
// Beside the runs' folders rank 0 writes results.csv (one row per run) and table.md (mean and
// deviation over seeds), anew after every run. scripts/plot_study.py draws from them.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/lab/study/study_table.hpp"
#include "apps/train/stop_signals.hpp"
#include "base/options.hpp"

namespace gossamer::apps {

struct StudyOutcome {
  int exit_code = 0;
  std::string folder;
  /// In the order of the study. Empty in processes without rank 0.
  std::vector<StudyRow> rows;
  /// Runs that had finished before.
  std::int64_t num_kept = 0;
};

/// Starts the ranks (worker threads, or what mpirun has started) and runs the study of a file with
/// `key.sub=value` replacements to its end. Errors are said once, and become the exit code. A run
/// that fails ends the study, and so does a signal that `stop` has caught.
StudyOutcome run_study(const std::string& config_path, const std::vector<std::string>& overrides,
                       const StopSignals* stop = nullptr);

/// Whether `folder` holds a run that is done and had this configuration and as many workers; where
/// it lies, how much it says and how long it waits for peers do not matter.
bool is_finished(const std::string& folder, const std::vector<ResolvedValue>& config, int workers);

}  // namespace gossamer::apps
