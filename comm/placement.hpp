#pragma once
// Where ranks run, worked out from a list of hosts: hosts[r] is a number for the host of rank r.
// Two ranks have the same number exactly if they run on the same host.

#include <span>

#include "base/types.hpp"

namespace gossamer {

/// The placement of `rank`. Ranks may be dealt to hosts unevenly and in any order.
Placement placement_of(std::span<const int> hosts, int rank);

/// The node size that fits the hosts: the ranks per host, where every host has equally many and
/// ranks are dealt out host by host. Otherwise 1, because no topology's node would be a host.
int node_size_of(std::span<const int> hosts);

}  // namespace gossamer
