#pragma once
// Runs a study: all its runs, one after the other. Each run goes through the code of `gossamer
// train` and has a folder of its own below the study's folder. A finished run with exactly the same
// configuration is kept, so a study that was stopped continues where it was. Keys that do not
// change the result are ignored: the output folder, the number of threads, how much is logged, and
// the timeout for peers. A run that was under way begins anew.
//
// After every run, rank 0 writes results.csv (one row per run) and table.md (mean and deviation
// over seeds) beside the runs' folders. scripts/plot_study.py draws from them.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/study/study_table.hpp"
#include "apps/train/stop_signals.hpp"

namespace gossamer::apps {

struct StudyOutcome {
  int exit_code = 0;
  std::string folder;
  /// The rows in the order of the study. Empty in processes without rank 0.
  std::vector<StudyRow> rows;
  /// The number of runs that had finished before.
  std::int64_t num_kept = 0;
};

/// Starts the ranks (worker threads, or what mpirun has started) and runs the study of a file with
/// `key.sub=value` replacements to its end. Errors are said once, and become the exit code. A run
/// that fails ends the study, and so does a signal that `stop` has caught. A finished run of other
/// values is refused before the first run starts; with `overwrite` it is replaced.
StudyOutcome run_study(const std::string& config_path, const std::vector<std::string>& overrides,
                       const StopSignals* stop = nullptr, bool overwrite = false);

}  // namespace gossamer::apps
