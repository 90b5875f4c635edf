#pragma once
// Warns of options of `outer` that are likely to ruin a run. Thread safe: there is no state. Throws
// nothing.

#include <string>

#include "core/algorithms/algorithm.hpp"

namespace gossamer {

/// A sentence of warning if an outer momentum is likely to ruin a run of several ranks (see
/// docs/guide/algorithms.md). Empty: there is nothing to say, or the algorithm is another one.
std::string outer_warning(const AlgorithmChoice& algorithm);

}  // namespace gossamer
