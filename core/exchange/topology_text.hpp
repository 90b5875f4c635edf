#pragma once
// Tells topologies apart. Thread safe.

#include <string>

#include "topology/topology.hpp"

namespace gossamer {

/// Returns the name, and a number that depends on the first rounds, because not every name shows
/// the options.
std::string text_of(const Topology& topology);

}  // namespace gossamer
