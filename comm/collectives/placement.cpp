#include "comm/collectives/placement.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

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

std::int64_t least_ring_bytes(std::span<const int> hosts, std::span<const int> ranks) {
  constexpr std::int64_t kShard = std::int64_t{64} << 10U;
  constexpr std::int64_t kBlock = std::int64_t{256} << 10U;
  const auto host_of = [&](int rank) { return hosts[static_cast<std::size_t>(rank)]; };
  const bool on_one_host =
      std::ranges::all_of(ranks, [&](int rank) { return host_of(rank) == host_of(ranks.front()); });
  if (on_one_host) return std::numeric_limits<std::int64_t>::max();
  return std::max(kBlock, kShard * std::ssize(ranks));
}

std::vector<int> ring_order(std::span<const int> hosts, std::span<const int> ranks) {
  std::vector<int> members(ranks.size());
  std::iota(members.begin(), members.end(), 0);
  std::ranges::stable_sort(members, {}, [&](int member) {
    return hosts[static_cast<std::size_t>(ranks[static_cast<std::size_t>(member)])];
  });
  return members;
}

}  // namespace gossamer
