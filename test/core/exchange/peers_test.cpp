#include "core/exchange/peers.hpp"

#include "test/core/ranks.hpp"
#include "test/core/test_topologies.hpp"
#include "test/topology/irregular.hpp"

#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/forwarding_communicator.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

/// Passes all calls on and remembers the colors of splits.
class SpyCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Communicator> split(int color) override {
    colors.push_back(color);
    return ForwardingCommunicator::split(color);
  }

  std::vector<int> colors;
};

/// Sums the ranks of a group over its communicator.
double sum_in(Peers& cache, const RankRound& round) {
  double mine = cache.world().rank();
  double sum = 0.0;
  cache.parts()
      .group(round)
      .all_reduce_sum(block_of(std::span(&mine, 1)), block_of(std::span(&sum, 1)), {})
      .wait();
  return sum;
}

void expect_group(Peers& cache, const RankRound& round) {
  EXPECT_EQ(cache.parts().group(round).world_ranks(), round.group);
  double sum = 0.0;
  for (const int rank : round.group) sum += rank;
  EXPECT_EQ(sum_in(cache, round), sum);
}

TEST(Peers, BuildsOneCommunicatorPerDistinctGroup) {
  // 16 ranks on 4 nodes: every rank is in 1 group inside its node and in 2 groups of two nodes.
  const World all{.size = 16, .node_size = 4};
  const std::shared_ptr<Topology> topology = make_topology("alternating-exp-ring", all);
  run_ranks(16, [&](Communicator& communicator, const World& world) {
    SpyCommunicator spy(communicator);
    SubCommunicators parts(spy);
    Peers cache(parts, *topology);
    std::set<std::vector<int>> mine;
    for (std::int64_t k = 0; k < *topology->period(); ++k) {
      mine.insert(topology->round(k).edge_of(world.rank).ranks);
    }
    EXPECT_EQ(spy.num_subgroups(), static_cast<std::int64_t>(mine.size()));
    EXPECT_EQ(spy.num_subgroups(), 3);
    const std::size_t num_splits = spy.colors.size();
    for (std::int64_t k = 0; k < 3 * *topology->period(); ++k) {
      EXPECT_EQ(cache.round(k), rank_round(topology->round(k), world.rank));
      expect_group(cache, cache.round(k));
    }
    EXPECT_EQ(spy.colors.size(), num_splits) << "nothing is built twice";
    EXPECT_EQ(spy.num_subgroups(), 3);
  });
}

TEST(Peers, SplitsEquallyOftenOnAllRanks) {
  for (const TopologyEntry& entry : topology_table()) {
    for (const int local : {1, 2, 3, 4, 6, 12}) {
      const World all{.size = 12, .node_size = local};
      if (entry.needs_options || !entry.fits(all)) continue;
      const std::shared_ptr<Topology> topology = make_topology(entry.name, all);
      std::vector<std::size_t> num_splits(12);
      run_ranks(12, [&](Communicator& communicator, const World& world) {
        SpyCommunicator spy(communicator);
        SubCommunicators parts(spy);
        const Peers cache(parts, *topology);
        num_splits[static_cast<std::size_t>(world.rank)] = spy.colors.size();
      });
      for (const std::size_t number : num_splits) EXPECT_EQ(number, num_splits[0]) << entry.name;
    }
  }
}

TEST(Peers, NeedsNoneForPairsAndForEverybody) {
  for (const char* name : {"ring", "one-peer-exp", "complete"}) {
    const std::shared_ptr<Topology> topology = make_topology(name, {.size = 4, .node_size = 4});
    run_ranks(4, [&](Communicator& communicator, const World&) {
      SpyCommunicator spy(communicator);
      SubCommunicators parts(spy);
      const Peers cache(parts, *topology);
      EXPECT_EQ(spy.num_subgroups(), 0) << name;
      EXPECT_TRUE(spy.colors.empty()) << name;
    });
  }
}

TEST(Peers, UsesTheWorldForEverybody) {
  const std::shared_ptr<Topology> topology = make_topology("complete", {.size = 3, .node_size = 3});
  run_ranks(3, [&](Communicator& communicator, const World&) {
    SubCommunicators parts(communicator);
    Peers cache(parts, *topology);
    EXPECT_EQ(&cache.parts().group(cache.round(0)), &communicator);
    expect_group(cache, cache.round(0));
  });
}

TEST(Peers, RefusesGroupsOfOthers) {
  const FunctionTopology topology([](std::int64_t) {
    return complete_round({averaging_edge({0, 1, 2}), averaging_edge({3, 4, 5})}, 6);
  });
  run_ranks(6, [&](Communicator& communicator, const World& world) {
    SubCommunicators parts(communicator);
    Peers cache(parts, topology);
    RankRound round = cache.round(0);
    EXPECT_EQ(communicator.num_subgroups(), 1);
    expect_group(cache, round);
    round.group = topology.round(0).edges[world.rank < 3 ? 1 : 0].ranks;
    EXPECT_THROW((void)cache.parts().group(round), std::logic_error);
    round.group = {0, 2, 4};
    EXPECT_THROW((void)cache.parts().group(round), std::logic_error);
  });
}

TEST(Peers, BuildsGroupsThatAppearLater) {
  // A topology without a period: no group at first, {0, 1, 2} from round 2 on, {2, 3, 4} from round
  // 5 on.
  const FunctionTopology topology([](std::int64_t k) {
    if (k < 2) return complete_round({averaging_edge({0, 1})}, 5);
    if (k < 5) return complete_round({averaging_edge({0, 1, 2})}, 5);
    if (k < 8) return complete_round({averaging_edge({2, 3, 4})}, 5);
    return complete_round({averaging_edge({0, 1, 2}), averaging_edge({3, 4})}, 5);
  });
  run_ranks(5, [&](Communicator& communicator, const World& world) {
    SpyCommunicator spy(communicator);
    SubCommunicators parts(spy);
    Peers cache(parts, topology);
    EXPECT_TRUE(spy.colors.empty());
    for (std::int64_t k = 0; k < 10; ++k) {
      // Every bucket asks for the round once.
      const RankRound expected = rank_round(topology.round(k), world.rank);
      for (int bucket = 0; bucket < 3; ++bucket) EXPECT_EQ(cache.round(k), expected);
      EXPECT_EQ(spy.colors.size(), k < 2 ? 0U : k < 5 ? 1U : 2U);
      const RankRound round = cache.round(k);
      if (round.group.size() > 2) expect_group(cache, round);
    }
    EXPECT_EQ(spy.num_subgroups(), world.rank == 2 ? 2 : 1);
  });
}

TEST(Peers, CountsBlocksOfSumsAndOfSingleRanks) {
  const auto needs_on = [](const char* name, int size, int node_size) {
    MostNeeds needs;
    const auto topology = make_topology(name, {.size = size, .node_size = node_size});
    run_ranks(size, [&](Communicator& communicator, const World& world) {
      SubCommunicators parts(communicator);
      Peers peers(parts, *topology, {.ranks = 3});
      if (world.rank == 0) needs = peers.most_needs();
    });
    return needs;
  };
  const auto expect = [](const RoundNeeds& found, std::int64_t inboxes, std::int64_t carried) {
    EXPECT_EQ(found.inboxes, inboxes);
    EXPECT_EQ(found.carried, carried);
  };
  const MostNeeds pairs = needs_on("one-peer-exp", 4, 4);
  expect(pairs.sums, 0, 0);
  expect(pairs.single, 1, 2);
  expect(pairs.all, 1, 2);
  const MostNeeds group = needs_on("complete", 4, 4);
  expect(group.sums, 1, 2);
  expect(group.single, 0, 0);
  const MostNeeds nodes = needs_on("hierarchical", 4, 2);
  expect(nodes.sums, 1, 3);
  expect(nodes.single, 1, 2);
  expect(nodes.all, 2, 5);
}

TEST(Peers, FollowsRandomRounds) {
  for (const int n : {1, 2, 5, 8}) {
    const RandomGroups topology(n, 3);
    run_ranks(n, [&](Communicator& communicator, const World&) {
      SubCommunicators parts(communicator);
      Peers cache(parts, topology);
      for (std::int64_t k = 0; k < 40; ++k) {
        const RankRound round = cache.round(k);
        if (round.group.size() > 2) expect_group(cache, round);
      }
    });
  }
}

TEST(Peers, BuildsTwoCommunicatorsPerNode) {
  const World all{.size = 12, .node_size = 2};
  const std::shared_ptr<Topology> topology =
      make_topology("hierarchical", all, Options::parse("leaders: complete, leaders_every: 2"));
  run_ranks(
      12,
      [&](Communicator& communicator, const World& world) {
        SubCommunicators parts(communicator);
        Peers cache(parts, *topology);
        const int first = world.rank / 2 * 2;
        EXPECT_EQ(cache.parts().node_sum(2).world_ranks(), (std::vector<int>{first, first + 1}));
        EXPECT_EQ(cache.parts().node_result(2).world_ranks(), (std::vector<int>{first, first + 1}));
        EXPECT_NE(&cache.parts().node_sum(2), &cache.parts().node_result(2));
        EXPECT_EQ(cache.round(0).kind, RankRound::Kind::kPair) << "inside the node";
        EXPECT_EQ(cache.round(1).group.size(), 6U) << "nodes";
        if (world.rank % 2 == 0) {
          EXPECT_EQ(cache.parts().group(cache.round(1)).world_ranks(),
                    (std::vector<int>{0, 2, 4, 6, 8, 10}));
        }
        EXPECT_EQ(communicator.num_subgroups(), world.rank % 2 == 0 ? 3 : 2);
      },
      2);
}

/// Counts how often somebody asks for a round.
class CountedRounds : public Topology {
 public:
  explicit CountedRounds(const Topology& inner) : inner_(inner) {}
  [[nodiscard]] std::string name() const override { return inner_.name(); }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return inner_.period(); }
  [[nodiscard]] bool directed() const override { return inner_.directed(); }
  [[nodiscard]] Round round(std::int64_t k) const override {
    ++num_asked;
    return inner_.round(k);
  }

  mutable std::int64_t num_asked = 0;

 private:
  const Topology& inner_;
};

/// Ranks with other push-sum weights in every round.
const IrregularDigraph kDigraph(5);

TEST(Peers, FollowsDirectedRoundsFromSavedWeights) {
  run_ranks(5, [&](Communicator& communicator, const World&) {
    SubCommunicators parts(communicator);
    Peers all(parts, kDigraph);
    for (std::int64_t k = 0; k < 7; ++k) (void)all.round(k);
    const CountedRounds counted(kDigraph);
    Peers resumed(parts, counted);
    counted.num_asked = 0;
    resumed.resume(all.weight());
    for (std::int64_t k = 6; k < 9; ++k) {
      EXPECT_EQ(resumed.round(k), all.round(k)) << k;
      EXPECT_EQ(resumed.weight(), all.weight()) << k;
    }
    EXPECT_EQ(counted.num_asked, 3);
    // A state of an earlier step.
    Peers first(parts, kDigraph);
    (void)first.round(0);
    const RankRound expected = first.round(1);
    resumed.resume(first.weight());
    EXPECT_EQ(resumed.round(1), expected);
  });
}

TEST(Peers, FollowsDirectedRoundsFromTheFirstWithoutSavedWeights) {
  run_ranks(5, [&](Communicator& communicator, const World&) {
    SubCommunicators parts(communicator);
    Peers all(parts, kDigraph);
    for (std::int64_t k = 0; k < 7; ++k) (void)all.round(k);
    Peers late(parts, kDigraph);
    EXPECT_EQ(late.round(7), all.round(7));
    EXPECT_EQ(late.weight(), all.weight());
  });
}

TEST(Peers, LooksAtOnePeriodWhereItChangesNoWeight) {
  const auto topology = make_topology("directed-one-peer-exp", {.size = 4, .node_size = 4});
  const std::int64_t period = topology->period().value();
  run_ranks(4, [&](Communicator& communicator, const World& world) {
    const CountedRounds counted(*topology);
    SubCommunicators parts(communicator);
    Peers peers(parts, counted);
    counted.num_asked = 0;
    constexpr std::int64_t kLate = 1'000'000'000'001;
    EXPECT_EQ(peers.round(kLate), rank_round(topology->round(kLate), world.rank));
    EXPECT_LE(counted.num_asked, 2 * period);
    EXPECT_EQ(peers.round(kLate + 1), rank_round(topology->round(kLate + 1), world.rank));
  });
}

TEST(Peers, RefusesSavedWeightsThatNoRunHas) {
  for (const double wrong : {0.0, 2.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    run_ranks(5, [&](Communicator& communicator, const World& world) {
      SubCommunicators parts(communicator);
      Peers peers(parts, kDigraph);
      peers.resume(world.rank == 3 ? wrong : 1.0);
      const std::string text = what_of<CheckpointError>([&] { (void)peers.round(4); });
      EXPECT_TRUE(contains(text, "run/model_weight")) << text;
    });
  }
}

TEST(Peers, RefusesRoundsThatAreNone) {
  const FunctionTopology topology([](std::int64_t) { return Round{{averaging_edge({0, 1})}}; });
  run_ranks(3, [&](Communicator& communicator, const World&) {
    SubCommunicators parts(communicator);
    Peers cache(parts, topology);
    EXPECT_THROW((void)cache.round(0), std::logic_error);
  });
}

}  // namespace
}  // namespace gossamer
