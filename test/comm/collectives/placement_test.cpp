// Which rank runs where, for regular, uneven and cyclic layouts.

#include "comm/collectives/placement.hpp"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "comm/backends.hpp"

namespace gossamer {
namespace {

struct Layout {
  const char* name;
  std::vector<int> hosts;
  std::vector<Placement> placements;
  int node_size = 1;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"one rank", {0}, {{0, 1}}, 1},
      {"one host", {0, 0, 0}, {{0, 3}, {1, 3}, {2, 3}}, 3},
      {"host by host", {0, 0, 2, 2}, {{0, 2}, {1, 2}, {0, 2}, {1, 2}}, 2},
      // mpirun --map-by node
      {"cyclic", {0, 1, 0, 1}, {{0, 2}, {0, 2}, {1, 2}, {1, 2}}, 1},
      {"uneven", {0, 0, 0, 3}, {{0, 3}, {1, 3}, {2, 3}, {0, 1}}, 1},
      {"uneven, the small host first", {0, 1, 1}, {{0, 1}, {0, 2}, {1, 2}}, 1},
      {"cyclic and uneven", {0, 1, 0}, {{0, 2}, {0, 1}, {1, 2}}, 1},
      {"halves the other way round",
       {0, 0, 2, 3, 3, 2},
       {{0, 2}, {1, 2}, {0, 2}, {0, 2}, {1, 2}, {1, 2}},
       1},
      {"a host each", {0, 1, 2}, {{0, 1}, {0, 1}, {0, 1}}, 1},
  };
  return all;
}

TEST(Placement, CountsTheRanksOfAHost) {
  for (const Layout& layout : layouts()) {
    for (std::size_t rank = 0; rank < layout.hosts.size(); ++rank) {
      EXPECT_EQ(placement_of(layout.hosts, static_cast<int>(rank)), layout.placements[rank])
          << layout.name << ", rank " << rank;
    }
  }
}

TEST(Placement, MakesNodesOfRegularHostsAlone) {
  for (const Layout& layout : layouts()) {
    EXPECT_EQ(node_size_of(layout.hosts), layout.node_size) << layout.name;
  }
}

TEST(Placement, OfThreadsIsOneHostWhateverTheirNodes) {
  for (const int node_size : {0, 1, 2, 4}) {
    const LaunchOptions options{.num_ranks = 4, .node_size = node_size};
    const int code = launch("threads", options, [&](Communicator&, const World& world) {
      EXPECT_EQ(world.placement, (Placement{world.rank, 4}));
      EXPECT_EQ(world.node_size, node_size == 0 ? 4 : node_size);
      return 0;
    });
    EXPECT_EQ(code, 0);
  }
}

TEST(Placement, SumsRoundARingBetweenHosts) {
  constexpr std::int64_t kKiB = 1024;
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  const std::vector<int> hosts = {0, 0, 2, 2, 3};
  EXPECT_EQ(least_ring_bytes(hosts, std::vector{0, 1}), kNever);
  EXPECT_EQ(least_ring_bytes(hosts, std::vector{4}), kNever);
  EXPECT_EQ(least_ring_bytes(hosts, std::vector{1, 2}), 256 * kKiB);
  EXPECT_EQ(least_ring_bytes(hosts, std::vector{0, 2, 4}), 256 * kKiB);
  EXPECT_EQ(least_ring_bytes(hosts, std::vector{0, 1, 2, 3, 4}), 320 * kKiB);
}

TEST(Placement, OrdersTheRingHostByHost) {
  const std::vector<int> in_turns = {0, 1, 0, 1, 4};
  EXPECT_EQ(ring_order(in_turns, std::vector{0, 1, 2, 3, 4}), (std::vector{0, 2, 1, 3, 4}));
  EXPECT_EQ(ring_order(in_turns, std::vector{1, 2, 3}), (std::vector{1, 0, 2}));
  EXPECT_EQ(ring_order(in_turns, std::vector{4}), std::vector{0});
  const std::vector<int> in_blocks = {0, 0, 2, 2};
  EXPECT_EQ(ring_order(in_blocks, std::vector{0, 1, 2, 3}), (std::vector{0, 1, 2, 3}));
}

}  // namespace
}  // namespace gossamer
