#pragma once
// The rows of a plan, not ordered yet: which algorithms and topologies suit the world, the time and
// bytes of their steps, and the rounds until the target.

#include <vector>

#include "apps/lab/plan/plan_row.hpp"

namespace gossamer::apps {

/// Throws ConfigError for an algorithm that no topology of this world suits, and for links that
/// lack a speed.
std::vector<PlanRow> plan_rows(const PlanOptions& options);

}  // namespace gossamer::apps
