#pragma once
// How the members of a run have changed (fault.mode: survive), as parts of its page. No state; any
// thread may call.

#include <cstddef>
#include <string>
#include <vector>

#include "apps/records/chart.hpp"
#include "apps/records/run_record.hpp"

namespace gossamer::apps {

/// The number of ranks at the beginning; NaN if nothing says it.
double num_first_ranks_of(const RunRecord& run);
/// The ranks at the beginning, and those now if they are others: `4, now 3`.
std::string num_ranks_of(const RunRecord& run);
/// A mark at every change. `x`: the key that a chart has on its x axis.
std::vector<LineChart::Mark> marks_of(const RunRecord& run, const std::string& x,
                                      std::size_t color);
/// A table of the changes; empty if there are none.
std::string members_table(const RunRecord& run);

}  // namespace gossamer::apps
