// The iteration-time model against times worked out by hand.

#include "apps/lab/plan/iteration_model.hpp"

#include "test/apps/lab/plan/predictions.hpp"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

/// A bucket of 1 MB takes a second between nodes and half a second within; nothing else takes time.
StepModel plain(int world_size, int node_size) {
  return {.world = {.size = world_size, .node_size = node_size},
          .links = {.within = LinkSpeed{.bandwidth = 2e6}, .between = LinkSpeed{.bandwidth = 1e6}},
          .bucket_bytes = {1e6}};
}

double gossip_s(const StepModel& model, const char* topology) {
  return predict_gossip(model, *make_topology(topology, model.world)).step_s;
}

std::unique_ptr<Topology> always(std::vector<Edge> edges, int world_size) {
  return make_periodic("test", {fill_round(std::move(edges), world_size)});
}

TEST(IterationModel, WithoutCommunicationComputesAndUpdates) {
  StepModel model = plain(4, 2);
  model.compute_s = 0.25;
  model.links.update_bytes_per_s = 4e6;
  EXPECT_NEAR(predict_local(model).step_s, 0.5, 1e-12);
  EXPECT_EQ(predict_local(model).wait_s, 0.0);
}

TEST(IterationModel, HidesAnExchangeBehindTheNextStep) {
  StepModel model = plain(2, 1);
  model.compute_s = 3.0;
  EXPECT_NEAR(gossip_s(model, "ring"), 3.0, 1e-12);
  model.compute_s = 0.25;
  const StepPrediction exposed = predict_gossip(model, *make_topology("ring", model.world));
  EXPECT_NEAR(exposed.step_s, 1.0, 1e-12);
  EXPECT_NEAR(exposed.wait_s, 0.75, 1e-12);
}

TEST(IterationModel, HidesALateAverageBehindSeveralSteps) {
  // A step computes for a second. A pair exchanges every fourth step, for 2.5 seconds.
  StepModel model = plain(2, 1);
  model.bucket_bytes = {2.5e6};
  model.compute_s = 1.0;
  model.num_steps = 40;
  const auto topology = make_topology("ring", model.world);
  const auto adamw = make_optimizer("adamw");
  const auto step_s = [&](int late) {
    const AlgorithmChoice choice("outer",
                                 Options::parse(concat("kind: noloco, every: 4, late: ", late)));
    const ExchangeSchedule schedule(
        {.algorithm = choice, .optimizer = *adamw, .world_size = 2, .bucket_numel = {625'000}});
    return predict_schedule(model, schedule, topology.get(), nullptr).step_s;
  };
  // Of 2.5 seconds, so many are hidden as steps are made meanwhile.
  EXPECT_NEAR(step_s(1), 1.0 + 1.5 / 4.0, 1e-9);
  EXPECT_NEAR(step_s(2), 1.0 + 0.5 / 4.0, 1e-9);
  EXPECT_NEAR(step_s(3), 1.0, 1e-9);
  EXPECT_NEAR(step_s(4), 1.0, 1e-9);
}

TEST(IterationModel, HidesAnAllReduceBehindTheRestOfBackward) {
  StepModel model = plain(2, 1);
  model.compute_s = 3.0;
  EXPECT_NEAR(predict_all_reduce(model).step_s, 4.0, 1e-12);
  model.bucket_bytes = {0.5e6, 0.5e6};
  EXPECT_NEAR(predict_all_reduce(model).step_s, 3.5, 1e-12);
  model.links.update_bytes_per_s = 5e6;
  // The first update hides behind the second bucket.
  EXPECT_NEAR(predict_all_reduce(model).step_s, 3.6, 1e-12);
}

TEST(IterationModel, SharesANodesLinkAmongItsRanks) {
  StepModel model = plain(4, 2);
  EXPECT_NEAR(predict_gossip(model, *always({averaging_edge({0, 2})}, 4)).step_s, 0.5, 1e-12)
      << "two of four ranks exchange, the others have nothing to do";
  const auto both = always({averaging_edge({0, 2}), averaging_edge({1, 3})}, 4);
  EXPECT_NEAR(predict_gossip(model, *both).step_s, 2.0, 1e-12);
  const auto inside = always({averaging_edge({0, 1}), averaging_edge({2, 3})}, 4);
  EXPECT_NEAR(predict_gossip(model, *inside).step_s, 0.5, 1e-12);
}

TEST(IterationModel, PaysALatencyForEveryStepOfARing) {
  StepModel model = plain(4, 1);
  model.links.between->latency_s = 0.125;
  EXPECT_NEAR(gossip_s(model, "complete"), 2.0 * 0.75 + 6.0 * 0.125, 1e-12);
  EXPECT_NEAR(predict_all_reduce(model).step_s, 2.25, 1e-12);
  EXPECT_NEAR(gossip_s(model, "one-peer-exp"), 1.125, 1e-12);
}

/// Seconds of an exchange of `bytes` on the backend tcp, as frame.hpp has it: the receiver's word
/// and the first byte take `latency_s` each, then the bytes follow. A ring of n > 2 ranks passes an
/// n-th of the bytes on in each of its 2 (n-1) steps.
double on_tcp_s(int n, double bytes, double latency_s, double bandwidth) {
  double end_s = latency_s;
  const int num_steps = n == 2 ? 1 : 2 * (n - 1);
  for (int step = 0; step < num_steps; ++step) {
    end_s += latency_s + bytes / (n == 2 ? 1 : n) / bandwidth;
  }
  return end_s;
}

TEST(IterationModel, WaitsForReceiversOnTcp) {
  for (const double latency_s : {0.0, 0.02, 0.3}) {
    for (const int n : {2, 4, 5}) {
      StepModel model = plain(n, 1);
      model.links.between = LinkSpeed{.latency_s = latency_s, .bandwidth = 3e6};
      model.links.backend = "tcp";
      EXPECT_NEAR(gossip_s(model, "complete"), on_tcp_s(n, 1e6, latency_s, 3e6), 1e-12);
      EXPECT_NEAR(predict_all_reduce(model).step_s, on_tcp_s(n, 1e6, latency_s, 3e6), 1e-12);
    }
  }
}

TEST(IterationModel, HidesLatenciesOfTcpBehindOtherBuckets) {
  StepModel model = plain(2, 1);
  model.links.backend = "tcp";
  model.bucket_bytes = {0.5e6, 0.5e6};
  // While one bucket waits for two latencies, the other one's bytes travel for half a second.
  model.links.between->latency_s = 0.2;
  EXPECT_NEAR(gossip_s(model, "ring"), 1.0, 1e-12);
  model.links.between->latency_s = 0.5;
  EXPECT_NEAR(gossip_s(model, "ring"), 0.5 + 2.0 * 0.5, 1e-12);
}

TEST(IterationModel, WaitsForNobodyInsideANode) {
  StepModel model = plain(4, 2);
  model.links.backend = "tcp";
  model.links.within->latency_s = 0.25;
  model.links.between->latency_s = 0.125;
  const auto inside = always({averaging_edge({0, 1}), averaging_edge({2, 3})}, 4);
  EXPECT_NEAR(predict_gossip(model, *inside).step_s, 0.25 + 0.5, 1e-12);
  EXPECT_NEAR(predict_gossip(model, *always({averaging_edge({0, 2})}, 4)).step_s,
              on_tcp_s(2, 1e6, 0.125, 1e6) / 2.0, 1e-12)
      << "two of four ranks exchange, so the mean is half of their step";
}

TEST(IterationModel, BoundsAGroupByItsSlowestHop) {
  const StepModel model = plain(4, 2);
  EXPECT_NEAR(gossip_s(model, "complete"), 1.5, 1e-12) << "each node sends the ring's bytes once";
}

TEST(IterationModel, SendsToEveryNeighbour) {
  EXPECT_NEAR(gossip_s(plain(5, 1), "static-ring"), 2.0, 1e-12);
}

TEST(IterationModel, GoesThroughTwoLevelsOneAfterTheOther) {
  // Sum in the node, exchange between nodes, result to the node.
  EXPECT_NEAR(gossip_s(plain(4, 2), "hierarchical"), 0.5 + 1.0 + 0.5, 1e-12);
}

TEST(IterationModel, AveragesOverTheRoundsOfAPeriod) {
  StepModel model = plain(4, 2);
  model.num_steps = 40;
  // Within a node, then both ranks of a node at once to the other node.
  EXPECT_NEAR(gossip_s(model, "one-peer-exp"), (0.5 + 2.0) / 2.0, 0.1);
}

TEST(IterationModel, LosesComputingToTransfers) {
  StepModel model = plain(4, 2);
  model.compute_s = 10.0;
  model.links.between->lost_s_per_byte = 1e-6;
  // Two ranks of each node send and receive 1 MB each, and share the loss.
  const auto both = always({averaging_edge({0, 2}), averaging_edge({1, 3})}, 4);
  EXPECT_NEAR(predict_gossip(model, *both).step_s, 12.0, 1e-9);
  const auto inside = always({averaging_edge({0, 1}), averaging_edge({2, 3})}, 4);
  EXPECT_NEAR(predict_gossip(model, *inside).step_s, 10.0, 1e-9);
}

TEST(IterationModel, LetsDelaysSpreadThroughExchangesAlone) {
  StepModel model = plain(16, 1);
  model.links.between = LinkSpeed{.bandwidth = 1e12};
  model.compute_s = 1.0;
  model.straggler_cv = 0.3;
  model.num_steps = 200;
  const StepPrediction alone = predict_gossip(model, *always({}, 16));
  EXPECT_EQ(alone.wait_s, 0.0);
  EXPECT_NEAR(alone.step_s, 1.0, 0.03);
  const double pairs = gossip_s(model, "one-peer-exp");
  const double all = predict_all_reduce(model).step_s;
  EXPECT_GT(pairs, alone.step_s);
  // The mean of the largest of 16 is 1.77 standard deviations above, for a normal distribution.
  EXPECT_NEAR(all, 1.0 + 0.3 * 1.77, 0.15);
  EXPECT_LT(pairs, 1.0 + 0.6 * (all - 1.0));
}

TEST(IterationModel, RepeatsWithTheSeed) {
  StepModel model = plain(4, 2);
  model.compute_s = 1.0;
  model.straggler_cv = 0.2;
  const double first = gossip_s(model, "ring");
  EXPECT_EQ(gossip_s(model, "ring"), first);
  model.seed = 2;
  EXPECT_NE(gossip_s(model, "ring"), first);
}

TEST(IterationModel, FollowsEveryTopology) {
  StepModel model = plain(8, 2);
  model.bucket_bytes = {3e5, 5e5, 2e5};
  model.compute_s = 0.1;
  model.straggler_cv = 0.2;
  const double local = predict_local(model).step_s;
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.needs_options) continue;
    const auto topology = entry.make(model.world, Options(), {});
    const StepPrediction step = predict_gossip(model, *topology);
    EXPECT_GE(step.step_s, local) << entry.name;
    EXPECT_NEAR(step.step_s - step.wait_s, local, 1e-9) << entry.name;
  }
}

TEST(IterationModel, IsTrivialForOneRank) {
  StepModel model = plain(1, 1);
  model.links = {};
  model.compute_s = 0.5;
  EXPECT_NEAR(gossip_s(model, "ring"), 0.5, 1e-12);
  EXPECT_NEAR(predict_all_reduce(model).step_s, 0.5, 1e-12);
}

TEST(IterationModel, RefusesWhatCannotBe) {
  const auto refuses = [](const auto& change) {
    StepModel model = plain(4, 2);
    change(model);
    EXPECT_THROW(predict_all_reduce(model), ConfigError);
  };
  refuses([](StepModel& model) { model.compute_s = -1.0; });
  refuses([](StepModel& model) { model.compute_s = std::nan(""); });
  refuses([](StepModel& model) { model.backward_share = 1.5; });
  refuses([](StepModel& model) { model.straggler_cv = -0.1; });
  refuses([](StepModel& model) { model.num_steps = 0; });
  refuses([](StepModel& model) { model.bucket_bytes = {}; });
  refuses([](StepModel& model) { model.bucket_bytes = {1e6, 0.0}; });
  refuses([](StepModel& model) { model.world.node_size = 3; });
  refuses([](StepModel& model) { model.world.size = 0; });
  refuses([](StepModel& model) { model.links.between.reset(); });
  refuses([](StepModel& model) { model.links.within.reset(); });
}

TEST(Buckets, HoldTheWholeModel) {
  EXPECT_EQ(split_into_buckets(10.0, 4.0), (std::vector{4.0, 4.0, 2.0}));
  EXPECT_EQ(split_into_buckets(8.0, 4.0), (std::vector{4.0, 4.0}));
  EXPECT_EQ(split_into_buckets(3.0, 4.0), (std::vector{3.0}));
  EXPECT_EQ(split_into_buckets(1e12, 1e3, 16), std::vector<double>(16, 1e12 / 16.0));
  EXPECT_THROW(split_into_buckets(0.0, 4.0), ConfigError);
  EXPECT_THROW(split_into_buckets(-5.0, 4.0), ConfigError);
  EXPECT_THROW(split_into_buckets(1e6, 0.0), ConfigError);
}

}  // namespace
}  // namespace gossamer::apps
