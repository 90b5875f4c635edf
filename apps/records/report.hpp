#pragma once
// Reports about runs: one HTML page without scripts or other files, and tables as CSV. No state;
// any thread may call.

#include <string>
#include <vector>

#include "apps/records/run_record.hpp"
#include "core/algorithms/plug_ins.hpp"

namespace gossamer::apps {

/// A page about one run, or a comparison of several.
/// `own`: rows that the runs' configurations may name, too.
std::string html_report(const std::vector<RunRecord>& runs, const PlugIns& own = {});
/// Writes the page about a run into its folder. Throws CheckpointError.
void write_report(const std::string& folder, const PlugIns& own = {});
/// One line for each record of each run. Columns are the numbers of all records; a record that
/// lacks one has an empty field.
std::string csv_report(const std::vector<RunRecord>& runs);

}  // namespace gossamer::apps
