#pragma once
// Where ranks run, worked out from a list of hosts: hosts[r] is a number for the host of rank r.
// Two ranks have the same number exactly if they run on the same host.

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.hpp"

namespace gossamer {

/// The placement of `rank`. Ranks may be dealt to hosts unevenly and in any order.
Placement placement_of(std::span<const int> hosts, int rank);

/// The node size that fits the hosts: the ranks per host, where every host has equally many and
/// ranks are dealt out host by host. Otherwise 1, because no topology's node would be a host.
int node_size_of(std::span<const int> hosts);

/// The size in bytes from which the blocks of a group of ranks are summed round a ring of messages:
/// 64 KiB for each member, and at least 256 KiB. Such sums are as fast as MPI's between hosts where
/// several are in flight (docs/design/decisions). Groups on one host have no ring.
std::int64_t least_ring_bytes(std::span<const int> hosts, std::span<const int> ranks);

/// The members of a group (0, 1, ...) in the order in which sums go round the ring: host by host.
/// So one rank of each host sends to another host, however ranks are dealt out.
std::vector<int> ring_order(std::span<const int> hosts, std::span<const int> ranks);

}  // namespace gossamer
