#pragma once
// Tells topologies apart. Thread safe.

#include <string>

#include "topology/topology.hpp"

namespace gossamer {

/// The name, and a number that depends on the first rounds, because options do not stand in every
/// name.
std::string text_of(const Topology& topology);

}  // namespace gossamer
