#pragma once
// What may be wrong with the options of `outer`. No state; any thread may call. Errors: none.

#include <string>

#include "core/algorithms/algorithm.hpp"

namespace gossamer {

/// A sentence of warning if an outer momentum is likely to ruin a run of several ranks (see
/// docs/guide/algorithms.md). Empty: there is nothing to say, or the algorithm is another one.
std::string outer_warning(const AlgorithmChoice& algorithm);

}  // namespace gossamer
