// The transfers of rounds carry the bytes that ranks send.

#include "apps/lab/plan/traffic.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "topology/rank_round.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

/// Of the bucket, summed over all links into ranks and nodes, or out of them.
double share_on(const Traffic& traffic, const LinkTable& links, bool incoming) {
  const int ranks = links.world().size;
  const int nodes = ranks / links.world().node_size;
  double sum = 0.0;
  for (const Transfer& transfer : traffic.transfers) {
    for (const Flow& flow : transfer.flows) {
      const bool is_rank = flow.link < 2 * ranks;
      const bool is_in = is_rank ? flow.link >= ranks : flow.link - 2 * ranks >= nodes;
      if (is_in == incoming) sum += flow.share;
    }
  }
  return sum;
}

TEST(Traffic, CarriesWhatRanksSend) {
  constexpr std::int64_t kBytes = 1'000'000;
  for (const World world : {World{.size = 8, .node_size = 2}, World{.size = 6, .node_size = 2},
                            World{.size = 7, .node_size = 1}, World{.size = 5, .node_size = 5}}) {
    const LinkTable links(world, assumed_links());
    for (const TopologyEntry& entry : topology_table()) {
      if (entry.needs_options || !entry.fits(world)) continue;
      const auto topology = entry.make(world, Options(), {});
      for (std::int64_t k = 0; k < 9; ++k) {
        const Round round = topology->round(k);
        // A result sent on in a node of more than two counts once there, and for every hop here.
        if (round.node_size > 2) continue;
        double sent = 0.0;
        for (int rank = 0; rank < world.size; ++rank) {
          sent += bytes_sent(rank_round(round, rank), rank, kBytes);
        }
        const Traffic traffic = traffic_of(round, links);
        const auto name = concat(entry.name, ", ", world.size, " ranks, round ", k);
        EXPECT_NEAR(share_on(traffic, links, false) * kBytes, sent, 1e-3) << name;
        EXPECT_NEAR(share_on(traffic, links, true) * kBytes, sent, 1e-3) << name;
      }
    }
  }
}

TEST(Traffic, LetsEveryRankWaitForItsOwnTransfersOnly) {
  const World world{.size = 8, .node_size = 2};
  const LinkTable links(world, assumed_links());
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.needs_options) continue;
    const Round round = entry.make(world, Options(), {})->round(0);
    const Traffic traffic = traffic_of(round, links);
    for (std::size_t rank = 0; rank < 8; ++rank) {
      const RankRound mine = rank_round(round, static_cast<int>(rank));
      const bool idles = mine.kind == RankRound::Kind::kIdle && mine.node_size == 1;
      EXPECT_EQ(traffic.num_waits[rank] == 0, idles) << entry.name;
      EXPECT_EQ(traffic.starts[rank].empty(), idles) << entry.name;
    }
  }
}

TEST(Traffic, LeavesANodeOnceInARing) {
  const World world{.size = 8, .node_size = 4};
  const LinkTable links(world, assumed_links());
  const Traffic traffic = all_reduce_traffic(links);
  ASSERT_EQ(traffic.transfers.size(), 1U);
  for (const int rank : {0, 4}) {
    for (const int link : {links.out_of_node(rank), links.into_node(rank)}) {
      double share = 0.0;
      for (const Flow& flow : traffic.transfers[0].flows) {
        share += flow.link == link ? flow.share : 0.0;
      }
      EXPECT_DOUBLE_EQ(share, 1.75);
    }
  }
  EXPECT_DOUBLE_EQ(traffic.transfers[0].latency_s, 14.0 * 5e-5);
}

TEST(LinkTable, BooksBothDirectionsOnOneAccount) {
  const World world{.size = 6, .node_size = 2};
  const LinkTable links(world, assumed_links());
  EXPECT_EQ(links.size(), 18);
  EXPECT_EQ(links.account(links.into_rank(3)), links.out_of_rank(3));
  EXPECT_EQ(links.account(links.into_node(5)), links.out_of_node(4));
  EXPECT_EQ(links.num_payers(links.into_node(5)), 2);
  EXPECT_EQ(links.num_payers(links.into_rank(5)), 1);
}

}  // namespace
}  // namespace gossamer::apps
