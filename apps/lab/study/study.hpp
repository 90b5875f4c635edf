#pragma once
// Runs a study: all its runs, one after the other. Each run goes through the code of `gossamer
// train` and has a folder of its own below the study's folder. A finished run with exactly the same
// configuration is kept, so a study that was stopped continues where it was. Keys that do not
// change the result are ignored: the output folder, the number of threads, how much is logged,
// the timeout for peers, and how ranks reach one another. A run that was under way begins anew.
//
// After every run, rank 0 writes results.csv (one row per run) and table.md (mean and deviation
// over seeds) beside the runs' folders.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/lab/study/study_table.hpp"
#include "comm/start/start.hpp"
#include "core/algorithms/plug_ins.hpp"

namespace gossamer::apps {

struct StudyOutcome {
  int exit_code = 0;
  std::string folder;
  /// The rows in the order of the study. Empty in processes without rank 0.
  std::vector<StudyRow> rows;
  /// The number of runs that had finished before.
  std::int64_t num_kept = 0;
};

struct StudyRequest {
  std::string config_path;
  /// `key.sub=value` replacements.
  std::vector<std::string> overrides = {};
  StartOptions start = {};
  /// A signal (StopSignals) ends the study.
  bool heeds_signals = false;
  /// A finished run of other values is replaced. Otherwise it is refused before the first run
  /// starts.
  bool overwrite = false;
  PlugIns own = {};
};

/// Starts the ranks (worker threads, or the processes that `start` and the launcher say) and runs
/// the study to its end. Errors are said once, and become the exit code. A run that fails ends the
/// study. Call it before any other thread runs. Throws ConfigError for a start that is impossible.
StudyOutcome run_study(const StudyRequest& request);

}  // namespace gossamer::apps
