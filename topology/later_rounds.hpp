#pragma once
// A topology that begins with a later round of another topology. Where several exchanges run side
// by side, each may begin elsewhere, so that a member meets several peers at the same time.

#include <cstdint>
#include <memory>

#include "topology/topology.hpp"

namespace gossamer {

/// The topology whose k-th round is round k + `first` of `topology`; `topology` itself for 0.
/// Throws std::logic_error for a negative `first`.
std::shared_ptr<const Topology> from_round(std::shared_ptr<const Topology> topology,
                                           std::int64_t first);

}  // namespace gossamer
