#pragma once
// The table of figures at the end of a run.

#include <string>

#include "apps/records/rank_figures.hpp"
#include "apps/train/evaluation.hpp"

namespace gossamer::apps {

/// Prints the table to stdout. `folder` is the folder of the run.
void print_summary(const Summary& summary, const Evaluation& evaluation, const std::string& folder);

}  // namespace gossamer::apps
