#pragma once
// Runs a sweep: all its runs one after the other, each through the code of `gossamer train` into a
// folder of its own below the sweep's. A run that has finished with the very same configuration is
// kept, so a sweep that was stopped goes on where it was; a run that was under way begins anew.
//
// Beside the runs' folders rank 0 writes results.csv (one row per run) and table.md (mean and
// deviation over seeds), anew after every run. scripts/plot_sweep.py draws from them.

#include <cstdint>
#include <string>
#include <vector>

#include "gossamer/apps/sweep/sweep_table.hpp"
#include "gossamer/core/base/options.hpp"

namespace gossamer::apps {

struct SweepOutcome {
  int exit_code = 0;
  std::string folder;
  /// In the order of the sweep. Empty in processes without rank 0.
  std::vector<SweepRow> rows;
  /// Runs that had finished before.
  std::int64_t num_kept = 0;
};

/// Starts the ranks (worker threads, or what mpirun has started) and runs the sweep of a file with
/// `key.sub=value` replacements to its end. Errors are said once, and become the exit code. A run
/// that fails ends the sweep.
SweepOutcome run_sweep(const std::string& config_path, const std::vector<std::string>& overrides);

/// Whether `folder` holds a run that is done and had this configuration and as many workers; where
/// it lies, how much it says and how long it waits for peers do not matter.
bool is_finished(const std::string& folder, const std::vector<ResolvedValue>& config, int workers);

}  // namespace gossamer::apps
