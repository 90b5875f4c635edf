#pragma once
// Checks a topology before a run starts, so that no run fails in a later round because of its
// topology.

#include <cstdint>
#include <optional>
#include <string>

#include "topology/topology.hpp"

namespace gossamer {

/// The longest period. Each rank prepares all rounds of a period before it starts.
inline constexpr std::int64_t kLongestPeriod = std::int64_t{1} << 20;

/// Why no run can follow `topology`, and what to change; nothing if a run can:
/// - its period is longer than kLongestPeriod, or
/// - push-sum fails: a round of two levels meets ranks of one node that have different weights, or
///   the weight of a rank falls to almost nothing.
/// Looks at rounds up to a fixed amount of work, and after each turning point anew.
std::optional<std::string> find_obstacle(const Topology& topology, int world_size);

/// Checks a topology whose rounds have not been checked, such as one of a user's own. Looks at the
/// rounds of one period, or at the first rounds, and also names the first round that breaks a rule
/// (verify.hpp).
std::optional<std::string> find_fault(const Topology& topology, int world_size);

/// Throws ConfigError with the text of find_obstacle().
void check_topology(const Topology& topology, int world_size);

}  // namespace gossamer
