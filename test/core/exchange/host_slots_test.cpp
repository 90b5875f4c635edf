// Blocks that ranks of one host read in each other's memory: the bits are those of messages,
// whichever ranks reach each other.

#include "core/exchange/host_slots.hpp"

#include "test/core/problem.hpp"
#include "test/core/test_topologies.hpp"
#include "test/support/sanitized.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/forwarding_communicator.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

/// Ranks whose numbers divided by `per_host` are the same share a host. 0: no rank reaches another.
class Hosts : public ForwardingCommunicator {
 public:
  Hosts(Communicator& inner, int per_host)
      : ForwardingCommunicator(inner), inner_(inner), per_host_(per_host) {}

  [[nodiscard]] std::int64_t num_on_host() const override {
    // Where no rank reaches another, the one host refuses.
    if (per_host_ == 0) return size();
    const int first = rank() / per_host_ * per_host_;
    return std::min(per_host_, size() - first);
  }
  std::vector<Buffer> allocate(std::int64_t bytes) override {
    ++num_areas;
    std::vector<Buffer> parts = inner_.shared_memory()->allocate(bytes);
    for (int member = 0; member < size(); ++member) {
      const bool is_near = per_host_ > 0 && member / per_host_ == rank() / per_host_;
      if (!is_near && member != rank()) parts[static_cast<std::size_t>(member)] = {};
    }
    return parts;
  }
  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    expect_far(peer);
    return inner_.exchange(peer, send, receive, std::move(context));
  }
  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    for (const int peer : peers) expect_far(peer);
    for (const Incoming& from : incoming) expect_far(from.peer);
    return inner_.exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                          std::move(context));
  }
  Request wait_signals(std::vector<Awaited> awaited, OpContext context) override {
    for (const Awaited& counter : awaited) EXPECT_EQ(counter.peer / per_host_, rank() / per_host_);
    return inner_.shared_memory()->wait_signals(std::move(awaited), std::move(context));
  }

  /// Calls of allocate().
  int num_areas = 0;

 private:
  /// Messages between ranks of one host go through slots.
  void expect_far(int peer) {
    if (per_host_ > 0) {
      EXPECT_NE(peer / per_host_, rank() / per_host_);
    }
  }

  Communicator& inner_;
  int per_host_;
};

/// What happens between two steps.
using InSteps = std::function<void(ToyModel& model, int rank, int step)>;

Trajectory train_on_hosts(
    const Problem& problem, int per_host, const InSteps& between = [](ToyModel&, int, int) {}) {
  Trajectory trajectory = empty_trajectory(problem);
  run_ranks(
      problem.num_ranks,
      [&](Communicator& communicator, const World& world) {
        Hosts hosts(communicator, per_host);
        ToyModel model = model_of(problem, hosts);
        for (int step = 0; step < problem.num_steps; ++step) {
          train_step(problem, model, world.rank, step);
          between(model, world.rank, step);
          trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(world.rank)] =
              model.values();
        }
        model.pipeline().drain();
      },
      problem.node_size);
  return trajectory;
}

Problem problem_on_node(std::shared_ptr<const Topology> topology, int n) {
  return {.num_ranks = n, .node_size = n, .topology = std::move(topology)};
}

/// All topologies that need no options and run on n ranks of one node.
std::vector<std::shared_ptr<const Topology>> topologies_of(int n) {
  std::vector<std::shared_ptr<const Topology>> topologies;
  for (const TopologyEntry& entry : topology_table()) {
    const World world{.size = n, .node_size = n};
    if (!entry.needs_options && entry.fits(world)) {
      topologies.push_back(make_topology(entry.name, world));
    }
  }
  topologies.push_back(std::make_shared<RandomGroups>(n, 7));
  return topologies;
}

void expect_the_bits_of_messages(std::initializer_list<int> sizes) {
  for (const int n : sizes) {
    for (const auto& topology : topologies_of(n)) {
      SCOPED_TRACE(concat(topology->name(), " on ", n, " ranks"));
      Problem problem = problem_on_node(topology, n);
      // Slots move bytes, so every number of ranks has one type.
      problem.dtype = n % 2 == 0 ? DType::kFloat32 : DType::kFloat64;
      const Trajectory expected = train_on_hosts(problem, 0);
      EXPECT_EQ(train_on_hosts(problem, n), expected) << "one host";
      EXPECT_EQ(train_on_hosts(problem, 2), expected) << "hosts of two";
      EXPECT_EQ(train_on_hosts(problem, 3), expected) << "hosts of three";
    }
  }
}

// Three ranks fill a host of three and no hosts of two, and four the other way round.
TEST(HostSlots, GiveTheBitsOfMessages) {
  expect_the_bits_of_messages({3});
  if (!kSanitized) expect_the_bits_of_messages({1, 4});
}
TEST(WideHostSlots, GiveTheBitsOfMessages) { expect_the_bits_of_messages({2, 6, 9}); }

TEST(HostSlots, GiveTheBitsOfMessagesToEveryAlgorithm) {
  for (const char* algorithm : {"gradient_tracking", "choco"}) {
    SCOPED_TRACE(algorithm);
    Problem problem = problem_on_node(make_topology("static-ring", {.size = 5, .node_size = 5}), 5);
    problem.algorithm = algorithm;
    problem.num_threads = 2;
    const Trajectory expected = train_on_hosts(problem, 0);
    EXPECT_EQ(train_on_hosts(problem, 5), expected);
    EXPECT_EQ(train_on_hosts(problem, 2), expected);
  }
}

TEST(HostSlots, SplitBlocksBetweenThreads) {
  Problem problem = problem_on_node(make_topology("ring", {.size = 2, .node_size = 2}), 2);
  problem.sizes = {300'001, 5, 70'000};
  problem.bucket_bytes = std::int64_t{1} << 30;
  problem.dtype = DType::kFloat32;
  problem.num_steps = 4;
  const Trajectory expected = train_on_hosts(problem, 0);
  problem.num_threads = 3;
  EXPECT_EQ(train_on_hosts(problem, 2), expected);
}

TEST(HostSlots, WaitForSlowReaders) {
  // Peers change from round to round, so a rank may be ahead of one that still reads its slot.
  Problem problem = problem_on_node(make_topology("one-peer-exp", {.size = 8, .node_size = 8}), 8);
  problem.num_steps = kSanitized ? 12 : 40;
  const Trajectory expected = train_on_hosts(problem, 0);
  const InSteps dawdle = [](ToyModel&, int rank, int step) {
    Random random(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step));
    if (random.below(4) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(3000)));
    }
  };
  EXPECT_EQ(train_on_hosts(problem, 8, dawdle), expected);
}

TEST(HostSlots, ForgetLikeMessages) {
  for (const char* topology : {"one-peer-exp", "ring", "static-ring", "alternating-exp-ring"}) {
    SCOPED_TRACE(topology);
    const Problem problem =
        problem_on_node(make_topology(topology, {.size = 4, .node_size = 4}), 4);
    // One rank alone forgets, in every third step, and writes its parameters.
    const InSteps forget = [&](ToyModel& model, int rank, int step) {
      if (rank != 1 || step % 3 != 1) return;
      model.pipeline().drain();
      model.write(std::vector<double>(problem.num_values(), 0.5 + step));
      model.pipeline().forget_arrived();
    };
    EXPECT_EQ(train_on_hosts(problem, 4, forget), train_on_hosts(problem, 0, forget));
  }
}

TEST(HostSlots, CanBeTurnedOff) {
  class NoSharing : public ForwardingCommunicator {
   public:
    using ForwardingCommunicator::ForwardingCommunicator;
    std::vector<Buffer> allocate(std::int64_t bytes) override {
      ADD_FAILURE() << "memory is shared";
      return ForwardingCommunicator::allocate(bytes);
    }
  };
  const Problem problem = problem_on_node(make_topology("ring", {.size = 3, .node_size = 3}), 3);
  const Trajectory expected = train_on_hosts(problem, 3);
  run_ranks(3, [&](Communicator& communicator, const World& world) {
    NoSharing messages(communicator);
    Pipeline::Config config = config_of(problem);
    config.exchange.shares_memory = false;
    ToyModel model = model_of(problem, messages, std::move(config));
    for (int step = 0; step < problem.num_steps; ++step) {
      train_step(problem, model, world.rank, step);
    }
    model.pipeline().drain();
    EXPECT_EQ(model.values(), expected.back()[static_cast<std::size_t>(world.rank)]);
  });
}

TEST(HostSlots, AreNotThereForARankAlone) {
  run_ranks(3, [](Communicator& communicator, const World&) {
    const auto are_shared = [](Communicator& world) {
      const auto memory = std::make_shared<HostMemory>(world);
      const HostSlots slots(memory, {.numel = 5});
      memory->share();
      return slots.are_shared();
    };
    Hosts alone(communicator, 1);
    EXPECT_FALSE(are_shared(alone));
    Hosts pairs(communicator, 2);
    EXPECT_EQ(are_shared(pairs), communicator.rank() != 2);
  });
}

TEST(HostSlots, LieInOneAreaForAllLanesAndTellWhoMustSendMessages) {
  Problem problem = problem_on_node(make_topology("static-ring", {.size = 5, .node_size = 5}), 5);
  problem.algorithm = "gradient_tracking";
  struct Hosting {
    int per_host;
    int num_sharing;
    int num_refused;
  };
  // One host, hosts of two (the last rank is alone), ranks alone, one host that refuses.
  for (const Hosting& c :
       {Hosting{5, 5, 0}, Hosting{2, 4, 0}, Hosting{1, 0, 0}, Hosting{0, 0, 5}}) {
    SCOPED_TRACE(c.per_host);
    run_ranks(5, [&](Communicator& communicator, const World& world) {
      Hosts hosts(communicator, c.per_host);
      ToyModel model = model_of(problem, hosts);
      EXPECT_GT(model.pipeline().buckets().size(), 2U);
      for (int step = 0; step < 3; ++step) train_step(problem, model, world.rank, step);
      model.pipeline().drain();
      EXPECT_EQ(hosts.num_areas, 1);
      EXPECT_EQ(model.pipeline().host_sharing().num_sharing, c.num_sharing);
      EXPECT_EQ(model.pipeline().host_sharing().num_refused, c.num_refused);
    });
  }
}

}  // namespace
}  // namespace gossamer
