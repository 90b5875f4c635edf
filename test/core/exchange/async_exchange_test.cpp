#include "core/exchange/async_exchange.hpp"

#include "test/base/thrown.hpp"
#include "test/core/exchange/async_exchange_runs.hpp"
#include "test/core/problem.hpp"
#include "test/support/sanitized.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/backends.hpp"
#include "core/bucket/model_average.hpp"
#include "topology/push_sum.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

/// An asynchronous exchange, and a model of one element.
struct AsyncExchangeRank {
  explicit AsyncExchangeRank(Communicator& communicator, const Topology& topology,
                             std::optional<std::int64_t> max_age, double start)
      : z(start),
        async_exchange(
            communicator, *communicator.stream(), metrics, topology,
            {.body_bytes = sizeof(double),
             .max_age = max_age,
             .write = [this](const Block& body) { *static_cast<double*>(body.data) = z; },
             .mix = [this](const AsyncExchange::Taken& taken) { mix(taken); }}) {}

  void mix(const AsyncExchange::Taken& taken, double update = 0.0) {
    double mixed = taken.keep * z;
    for (const auto& message : taken.messages) {
      mixed += message.weight * *static_cast<const double*>(message.body.data);
    }
    z = mixed - taken.update_scale * update;
  }
  /// A step without an update.
  void step(int k) {
    mix(async_exchange.take(k));
    async_exchange.release();
    async_exchange.send(k);
  }
  void close() { async_exchange.close(); }

  double z;
  LaneMetrics metrics = {};
  AsyncExchange async_exchange;
};

class AsyncExchangeOn : public testing::TestWithParam<std::string> {};

TEST_P(AsyncExchangeOn, KeepsTheMassWhateverTheDelays) {
  // More than 3,000 delays for all bounds together.
  constexpr int kNumSteps = 60;
  for (const int num_ranks : {2, 5}) {
    for (std::int64_t max_age = 1; max_age <= 8; max_age += kThreadSanitized ? 3 : 1) {
      const AsyncExchangeRun run{.topology = async_topology(GetParam(), num_ranks),
                                 .max_age = max_age,
                                 .num_steps = kNumSteps,
                                 .seed = static_cast<std::uint64_t>(max_age)};
      run_ranks(num_ranks, [&](Communicator& communicator, const World&) {
        require_sound(run_async_exchanges(communicator, run), run,
                      concat(GetParam(), ", ", num_ranks, " ranks, bound ", max_age));
      });
    }
  }
}

TEST_P(AsyncExchangeOn, NeverWaitsWithoutABound) {
  const AsyncExchangeRun run{.topology = async_topology(GetParam(), 4)};
  run_ranks(4, [&](Communicator& communicator, const World&) {
    require_sound(run_async_exchanges(communicator, run), run, GetParam());
  });
}

// All other ranks close before their first step. Each of them takes one message, which has at most
// half the mass, and says that it closes.
TEST_P(AsyncExchangeOn, LeavesMassToARankThatGoesOnAlone) {
  for (const int num_ranks : {2, 5}) {
    const auto topology = async_topology(GetParam(), num_ranks);
    run_ranks(num_ranks, [&](Communicator& communicator, const World& world) {
      AsyncExchangeRank rank(communicator, *topology, 2, world.rank);
      if (world.rank == 0) {
        for (int step = 0; step < 100; ++step) {
          rank.step(step);
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        EXPECT_GE(rank.async_exchange.state().mass, std::exp2(1 - num_ranks));
      }
      rank.close();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Topologies, AsyncExchangeOn,
                         testing::Values("static-exp", "directed-one-peer-exp", "directed-ring",
                                         "ring", "complete"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(AsyncExchange, KeepsTheMassInALongRun) {
  const AsyncExchangeRun run{.topology = async_topology("static-exp", 4),
                             .max_age = 2,
                             .num_steps = kSanitized ? 300 : 1500,
                             .longest_sleep_us = 50};
  run_ranks(4, [&](Communicator& communicator, const World&) {
    require_sound(run_async_exchanges(communicator, run), run, "a long run");
  });
}

double update_of(int rank, int step) { return 0.01 * std::sin(1.0 + rank + 0.3 * step); }

/// One step of synchronous push-sum: z_i' = sum of (A_ij s_j / s_i') z_j - u_i / s_i'.
std::vector<double> push_sum_step(const std::vector<double>& z, PushSum& push_sum,
                                  const Topology& topology, int step) {
  const auto num_ranks = static_cast<int>(z.size());
  std::vector<double> mixed(z.size());
  if (step == 0) {
    mixed = z;
  } else {
    Round round;
    for (const Edge& edge : topology.round(0).edges) append_arcs(edge, round.arcs);
    round = push_sum.advance(round);
    // First a rank's own part, then the parts of others in the order of their ranks.
    for (const bool own : {true, false}) {
      for (const Arc& arc : round.arcs) {
        if ((arc.from == arc.to) != own) continue;
        mixed[static_cast<std::size_t>(arc.to)] +=
            arc.weight * z[static_cast<std::size_t>(arc.from)];
      }
    }
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    mixed[place] -= update_of(rank, step) / push_sum.weights()[place];
  }
  return mixed;
}

// Here messages take no time: nobody sends before all acknowledgements have come, and nobody goes
// on before all messages have.
TEST(AsyncExchange, EqualsSynchronousPushSumWithoutDelays) {
  for (const int num_ranks : {2, 4}) {
    const auto topology = async_topology("complete", num_ranks);
    run_ranks(num_ranks, [&](Communicator& communicator, const World&) {
      std::vector<double> all;
      for (int rank = 0; rank < num_ranks; ++rank) all.push_back(std::cos(rank));
      PushSum push_sum(num_ranks);
      const auto place = static_cast<std::size_t>(communicator.rank());
      AsyncExchangeRank rank(communicator, *topology, 0, all[place]);
      for (int step = 0; step < 50; ++step) {
        rank.mix(rank.async_exchange.take(step), update_of(communicator.rank(), step));
        rank.async_exchange.release();
        communicator.barrier();
        while (rank.async_exchange.num_busy() > 0) std::this_thread::yield();
        communicator.barrier();
        rank.async_exchange.send(step);
        all = push_sum_step(all, push_sum, *topology, step);
        EXPECT_EQ(rank.z, all[place]) << "step " << step;
      }
      EXPECT_EQ(rank.async_exchange.counters().largest_age, 0);
      rank.close();
    });
  }
}

// Rank 0 makes no step until rank 1 has made all that it may.
TEST(AsyncExchange, WaitsWhenTheLastLetterIsTooOld) {
  const auto topology = async_topology("directed-ring", 2);
  constexpr std::int64_t kMaxAge = 3;
  std::atomic<int> steps_of_one = 0;
  run_ranks(2, [&](Communicator& communicator, const World&) {
    AsyncExchangeRank rank(communicator, *topology, kMaxAge, 0.0);
    if (communicator.rank() == 1) {
      for (int k = 0; k < 10; ++k) {
        rank.step(k);
        ++steps_of_one;
      }
      EXPECT_EQ(rank.async_exchange.counters().largest_age, kMaxAge);
    } else {
      while (steps_of_one < kMaxAge + 1) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      // It has heard nothing, so it cannot be further.
      EXPECT_EQ(steps_of_one, kMaxAge + 1);
      for (int k = 0; k < 10; ++k) rank.step(k);
    }
    rank.close();
  });
}

TEST(AsyncExchange, GoesOnIfTheLetterComesWhileItSendsItsOwn) {
  // Rank 0 hears from rank 1, and sends to ranks 1 and 2. Nobody sends in even rounds, so rank 0
  // waits in step 1, and sends while it waits.
  const Round some{.arcs = {{.from = 0, .to = 0, .weight = 1.0 / 3.0},
                            {.from = 1, .to = 0, .weight = 0.5},
                            {.from = 0, .to = 1, .weight = 1.0 / 3.0},
                            {.from = 1, .to = 1, .weight = 0.5},
                            {.from = 0, .to = 2, .weight = 1.0 / 3.0},
                            {.from = 2, .to = 2, .weight = 1.0}}};
  const Round none{.arcs = {{.from = 0, .to = 0, .weight = 1.0},
                            {.from = 1, .to = 1, .weight = 1.0},
                            {.from = 2, .to = 2, .weight = 1.0}}};
  const std::shared_ptr<const Topology> topology =
      make_periodic("now and then", {none, some}, /*directed=*/true);
  std::atomic<int> num_writes = 0;
  std::atomic<bool> has_come = false;
  std::atomic<bool> is_over = false;
  const auto wait_for = [](const auto& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(condition());
  };
  run_ranks(3, [&](Communicator& communicator, const World& world) {
    LaneMetrics metrics;
    const auto write = [&](const Block& /*body*/) {
      // While rank 0 writes its second message, its first one leaves, and that of rank 1 arrives.
      if (world.rank != 0 || ++num_writes != 2) return;
      wait_for([&] { return has_come.load(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    };
    AsyncExchange async_exchange(communicator, *communicator.stream(), metrics, *topology,
                                 {.body_bytes = 8,
                                  .max_age = 0,
                                  .write = write,
                                  .mix = [](const AsyncExchange::Taken& /*taken*/) {}});
    // Rank 1 does not use rank 0's message, and rank 2 does not receive one, until rank 0 goes on.
    if (world.rank == 2) wait_for([&] { return is_over.load(); });
    static_cast<void>(async_exchange.take(0));
    async_exchange.release();
    if (world.rank == 0) {
      async_exchange.send(0);
      EXPECT_EQ(async_exchange.take(1).messages.size(), 1U);
      async_exchange.release();
      is_over = true;
    } else if (world.rank == 1) {
      wait_for([&] { return num_writes == 2; });
      async_exchange.send(1);
      has_come = true;
      wait_for([&] { return is_over.load(); });
    }
    async_exchange.close();
  });
}

// Nobody sends for longer than the time limit of an operation, and nobody waits.
TEST(AsyncExchange, LetsAnEdgeRestForAsLongAsNobodyWaits) {
  const auto topology = async_topology("directed-ring", 2);
  const LaunchOptions options{.num_ranks = 2, .timeout_s = 1.0, .log_level = LogLevel::kOff};
  const auto body = [&](Communicator& communicator, const World& world) {
    AsyncExchangeRank rank(communicator, *topology, 2, world.rank);
    rank.mix(rank.async_exchange.take(0));
    rank.async_exchange.release();
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    rank.close();
    return 0;
  };
  EXPECT_EQ(launch("threads", options, body), 0);
}

TEST(AsyncExchange, FindsTheMeanAfterClosing) {
  const auto topology = async_topology("directed-ring", 3);
  run_ranks(3, [&](Communicator& communicator, const World&) {
    AsyncExchangeRank rank(communicator, *topology, 2, communicator.rank());
    rank.close();
    rank.close();
    const double sum =
        sum_over_ranks(communicator, {rank.z * rank.async_exchange.state().mass}).front();
    EXPECT_NEAR(sum, 3.0, 1e-12);
  });
}

TEST(AsyncExchange, RefusesTopologiesWithoutAPeriod) {
  EXPECT_NE(why_no_async_exchange(*async_topology("random-matching", 4)).find("repeats"),
            std::string::npos);
  const auto nodes = make_topology("hierarchical", {.size = 4, .node_size = 2});
  EXPECT_NE(why_no_async_exchange(*nodes).find("one level"), std::string::npos);
  EXPECT_EQ(why_no_async_exchange(*async_topology("directed-ring", 4)), "");
}

}  // namespace
}  // namespace gossamer
