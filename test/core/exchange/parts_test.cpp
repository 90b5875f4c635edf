// Large blocks, which travel in parts: the bits are those of whole blocks, and the first parts are
// there while the last ones are not.

#include "test/core/problem.hpp"
#include "test/support/sanitized.hpp"

#include <algorithm>
#include <cstdint>
#include <latch>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/host_stream.hpp"
#include "comm/forwarding_communicator.hpp"
#include "core/exchange/peer_lanes.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

/// Counts the exchanges.
class Counting : public ForwardingCommunicator {
 public:
  explicit Counting(Communicator& inner) : ForwardingCommunicator(inner) {}

  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    ++num_exchanges;
    return ForwardingCommunicator::exchange(peer, send, receive, std::move(context));
  }
  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    ++num_exchanges;
    return ForwardingCommunicator::exchange_with_neighbors(send, std::move(peers),
                                                           std::move(incoming), std::move(context));
  }

  int num_exchanges = 0;
};

// Elements of 8 bytes. A parameter is less than the two MiB that go in two parts.
constexpr std::int64_t kNumel = 150'001;
constexpr int kNumParameters = 5;

Problem large_problem(const std::string& topology, int num_ranks) {
  return {.num_ranks = num_ranks,
          .topology = make_topology(topology, {.size = num_ranks}),
          .shares_memory = false,
          .sizes = std::vector<std::int64_t>(kNumParameters, kNumel),
          .num_steps = 3};
}

/// Expects that every rank makes `num_exchanges` in a step.
Trajectory train_counted(const Problem& problem, int num_exchanges) {
  Trajectory trajectory = empty_trajectory(problem);
  run_ranks(problem.num_ranks, [&](Communicator& communicator, const World& world) {
    Counting counting(communicator);
    ToyModel model = model_of(problem, counting);
    for (int step = 0; step < problem.num_steps; ++step) {
      train_step(problem, model, world.rank, step);
      trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(world.rank)] =
          model.values();
    }
    model.pipeline().drain();
    EXPECT_EQ(counting.num_exchanges, num_exchanges * problem.num_steps);
  });
  return trajectory;
}

class LargeBlocks : public testing::TestWithParam<std::string> {};

TEST_P(LargeBlocks, MixToTheSameBitsAsSmallOnes) {
  Problem problem = large_problem(GetParam(), 4);
  problem.bucket_bytes = 1;
  const Trajectory small = train_counted(problem, kNumParameters);
  // 5.7 MiB.
  problem.bucket_bytes = std::int64_t{1} << 30;
  // Under sanitizers on several threads alone.
  for (const int num_threads : kSanitized ? std::vector{3} : std::vector{1, 3}) {
    problem.num_threads = num_threads;
    EXPECT_EQ(train_counted(problem, 5), small) << num_threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(All, LargeBlocks,
                         testing::Values("one-peer-exp", "static-ring", "static-exp"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(LargeBlocks, SuitARuleOfSomebodyElse) {
  Problem problem = large_problem("one-peer-exp", 2);
  problem.rule = {.type = "sgd"};
  problem.bucket_bytes = std::int64_t{1} << 30;
  const Trajectory own = train_counted(problem, 5);
  problem.has_external_optimizer = true;
  EXPECT_EQ(train_counted(problem, 5), own);
}

TEST(LargeBlocks, MayBeForgotten) {
  Problem problem = large_problem("one-peer-exp", 2);
  problem.bucket_bytes = std::int64_t{1} << 30;
  const auto forgetful = [&problem](std::vector<std::vector<double>>& ends) {
    ends.resize(2);
    run_ranks(2, [&](Communicator& communicator, const World& world) {
      ToyModel model = model_of(problem, communicator);
      for (int step = 0; step < problem.num_steps; ++step) {
        train_step(problem, model, world.rank, step);
        model.pipeline().drain();
        model.pipeline().forget_arrived();
      }
      ends[static_cast<std::size_t>(world.rank)] = model.values();
    });
  };
  std::vector<std::vector<double>> forgotten;
  forgetful(forgotten);
  problem.algorithm = "local";
  std::vector<std::vector<double>> local;
  forgetful(local);
  EXPECT_EQ(forgotten, local);
}

TEST(LargeBlocks, AreThereInPartBeforeTheRest) {
  // Two parts.
  constexpr std::int64_t kHalf = std::int64_t{1} << 18;
  std::latch first_is_there(1);
  run_ranks(2, [&](Communicator& communicator, const World& world) {
    const Buffer sent(2 * kHalf, DType::kFloat32);
    if (world.rank == 1) {
      // A rank that sends its second part late.
      const Buffer received(2 * kHalf, DType::kFloat32);
      std::ranges::fill(sent.block().as<float>(), 3.0F);
      communicator
          .exchange(0, part_of(sent.block(), 0, kHalf), part_of(received.block(), 0, kHalf), {})
          .wait();
      first_is_there.wait();
      communicator
          .exchange(0, part_of(sent.block(), kHalf, kHalf), part_of(received.block(), kHalf, kHalf),
                    {})
          .wait();
      return;
    }
    InlineStream stream;
    PipelineMetrics metrics;
    PeerLanes factory({.stream = stream,
                       .communicator = communicator,
                       .topology = make_topology("one-peer-exp", {.size = 2}),
                       .shares_memory = false,
                       .metrics = metrics});
    Lane& lane = factory.make_lane({.numel = 2 * kHalf});
    lane.start(0, sent);
    const Intake intake = lane.receive();
    ASSERT_TRUE(intake.exchange.wait_for_more);
    ASSERT_EQ(intake.inboxes.size(), 1);
    const auto inbox = intake.inboxes.front().block.as<float>();
    EXPECT_EQ(intake.exchange.wait_for_more(), kHalf);
    EXPECT_EQ(inbox[0], 3.0F);
    EXPECT_EQ(inbox[kHalf - 1], 3.0F);
    // What has arrived may be written; the rest is still under way.
    std::ranges::fill(part_of(sent.block(), 0, kHalf).as<float>(), 1.0F);
    first_is_there.count_down();
    EXPECT_EQ(intake.exchange.wait_for_more(), 2 * kHalf);
    EXPECT_EQ(inbox[2 * kHalf - 1], 3.0F);
    lane.drain();
  });
}

}  // namespace
}  // namespace gossamer
