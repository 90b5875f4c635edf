#include "comm/placement.hpp"

#include <algorithm>

namespace gossamer {

Placement placement_of(std::span<const int> hosts, int rank) {
  const int host = hosts[static_cast<std::size_t>(rank)];
  return {.local_rank = static_cast<int>(
              std::ranges::count(hosts.first(static_cast<std::size_t>(rank)), host)),
          .local_world_size = static_cast<int>(std::ranges::count(hosts, host))};
}

int node_size_of(std::span<const int> hosts) {
  const int size = placement_of(hosts, 0).local_world_size;
  const int num_ranks = static_cast<int>(hosts.size());
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (placement_of(hosts, rank) != Placement{rank % size, size}) return 1;
  }
  return size;
}

}  // namespace gossamer
