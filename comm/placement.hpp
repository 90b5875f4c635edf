#pragma once
// Where ranks run, worked out from a list of hosts: hosts[r] is a number that all ranks on the host
// of rank r have in common, and no rank of another host.

#include <span>

#include "base/types.hpp"

namespace gossamer {

/// The placement of `rank`. Ranks may be dealt to hosts unevenly and in any order.
Placement placement_of(std::span<const int> hosts, int rank);

/// The node size that fits the hosts: the ranks per host, where every host has equally many and
/// ranks are dealt out host by host. Otherwise 1, because no topology's node would be a host.
int node_size_of(std::span<const int> hosts);

}  // namespace gossamer
