// Faults on purpose, in runs that go on.

#include "test/support/fault_injector.hpp"

#include "test/base/thrown.hpp"
#include "test/comm/elastic_run.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/backends.hpp"

namespace gossamer::elastic_test {
namespace {

using Kind = Fault::Kind;
using Moment = Fault::Moment;

/// On every backend that goes on without ranks.
class Faults : public testing::TestWithParam<std::string> {
 protected:
  static Plan plan_of(int size, std::vector<Fault> faults) {
    return {.backend = GetParam(),
            .size = size,
            .injector = std::make_shared<FaultInjector>(std::move(faults))};
  }
};
INSTANTIATE_TEST_SUITE_P(Of, Faults, testing::Values("threads", "tcp"),
                         [](const auto& tested) { return tested.param; });

/// All come to the end together. Their worlds have had these sizes.
void expect_sizes(const std::vector<Ended>& ends, const std::vector<int>& sizes) {
  for (const Ended& ended : ends) {
    EXPECT_EQ(ended.code, 0) << ended.why;
    EXPECT_EQ(ended.sizes, sizes);
    EXPECT_EQ(ended.steps, ends.front().steps);
  }
}

TEST_P(Faults, EndARankAtAnyMoment) {
  for (const char* what : {"sum", "exchange"}) {
    for (const Moment moment : {Moment::kBefore, Moment::kAfter}) {
      for (const int victim : {0, 2}) {
        SCOPED_TRACE(std::string(what) + " " + std::to_string(static_cast<int>(moment)) + " " +
                     std::to_string(victim));
        const Plan plan = plan_of(
            4,
            {{.kind = Kind::kFail, .moment = moment, .member = victim, .what = what, .round = 5}});
        std::vector<Ended> ends = play(plan);
        EXPECT_EQ(plan.injector->num_strikes(), 1);
        const Ended dead = ends[static_cast<std::size_t>(victim)];
        EXPECT_EQ(dead.code, static_cast<int>(ExitCode::kInternal)) << dead.why;
        EXPECT_CONTAINS(dead.why, "round 5: an injected fault ends this rank");
        ends.erase(ends.begin() + victim);
        expect_sizes(ends, {4, 3});
      }
    }
  }
}

TEST_P(Faults, MakeOperationsSlow) {
  constexpr std::chrono::milliseconds kDelay{20};
  const Plan plan =
      plan_of(3, {{.kind = Kind::kSlow, .member = 1, .what = "sum", .times = 3, .delay = kDelay},
                  {.kind = Kind::kSlow,
                   .moment = Moment::kAfter,
                   .member = 0,
                   .what = "exchange",
                   .skip = 2,
                   .times = 2,
                   .delay = kDelay}});
  const auto begin = std::chrono::steady_clock::now();
  expect_sizes(play(plan), {3});
  // A delay shows in nothing but time. Rank 1 sums before rank 0 exchanges.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 4 * kDelay);
  EXPECT_EQ(plan.injector->num_strikes(), 5);
}

TEST_P(Faults, CancelOperationsOfRanksThatAreAllAlive) {
  for (const Moment moment : {Moment::kBefore, Moment::kAfter}) {
    const Plan plan = plan_of(
        4,
        {{.kind = Kind::kCancel, .moment = moment, .member = 3, .what = "sum", .round = 2},
         {.kind = Kind::kCancel, .moment = moment, .member = 0, .what = "exchange", .round = 7}});
    expect_sizes(play(plan), {4, 4, 4});
    EXPECT_EQ(plan.injector->num_strikes(), 2);
  }
}

/// The exchanges of one pair fail again and again, and no others.
TEST_P(Faults, LoseOneOfAPairThatFailsThreeTimes) {
  const Plan plan =
      plan_of(4, {{.kind = Kind::kCancel, .member = 0, .what = "exchange", .peer = 1, .times = 3}});
  std::vector<Ended> ends = play(plan);
  EXPECT_EQ(plan.injector->num_strikes(), 3);
  // Both lose the other one, and whoever asks the store first goes on.
  const auto lost = std::ranges::find_if(ends, [](const Ended& ended) { return ended.code != 0; });
  ASSERT_LT(lost - ends.begin(), 2);
  EXPECT_EQ(lost->code, static_cast<int>(ExitCode::kPreempted)) << lost->why;
  EXPECT_EQ(lost->sizes.back(), 4);
  ends.erase(lost);
  for (const Ended& ended : ends) {
    EXPECT_EQ(ended.code, 0) << ended.why;
    EXPECT_EQ(ended.sizes.back(), 3);
    EXPECT_EQ(ended.steps, ends.front().steps);
  }
}

/// Nobody ends the epoch but the timeout.
TEST_P(Faults, DropAMessageUntilTheTimeout) {
  Plan plan = plan_of(4, {{.kind = Kind::kDrop, .member = 2, .what = "exchange", .round = 5}});
  plan.timeout_s = 5.0;
  expect_sizes(play(plan), {4, 4});
  EXPECT_EQ(plan.injector->num_strikes(), 1);
}

/// Rank 0 hears rank 1, and rank 1 does not hear rank 0. When nothing moves any more, another rank
/// ends the epoch.
TEST_P(Faults, DropTheMessagesInOneDirection) {
  std::vector<Fault> faults;
  for (const std::int64_t step : {3, 5, 8}) {
    faults.push_back(
        {.kind = Kind::kDrop, .member = 0, .what = "exchange", .round = step, .peer = 1});
    faults.push_back({.kind = Kind::kCancel, .member = 3, .what = "sum", .round = step + 1});
  }
  Plan plan = plan_of(4, std::move(faults));
  // Rank 3 may be so far ahead that it would end the epoch before rank 0 has sent its message.
  plan.at_step = [injector = plan.injector](std::int64_t step) {
    const std::int64_t strikes = step == 4 ? 1 : step == 6 ? 3 : step == 9 ? 5 : 0;
    while (injector->num_strikes() < strikes) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  };
  expect_sizes(play(plan), {4, 4, 4, 4});
  EXPECT_EQ(plan.injector->num_strikes(), 6);
}

TEST_P(Faults, StrikeOperationsThatTheCallerWaitsFor) {
  for (const Moment moment : {Moment::kBefore, Moment::kAfter}) {
    for (const char* what : {"barrier", "gather", "split", "share"}) {
      SCOPED_TRACE(what);
      const auto injector = std::make_shared<FaultInjector>(std::vector<Fault>{
          {.kind = Kind::kSlow, .moment = moment, .member = 1, .what = what},
          {.kind = Kind::kCancel, .moment = moment, .member = 1, .what = what, .skip = 1}});
      LaunchOptions options{.timeout_s = 30.0, .log_level = LogLevel::kOff};
      options.fault = {.survives = true, .silence_s = 20.0, .wrap = inject_faults(injector)};
      on_ranks(GetParam(), 3, std::make_shared<MemoryStore>(), options,
               [](int rank, const OpenSession& open) {
                 const auto session = open();
                 Communicator& communicator = session->communicator();
                 const auto call_all = [&] {
                   communicator.barrier();
                   communicator.all_gather("x");
                   communicator.split(0)->barrier();
                   communicator.shared_memory()->allocate(8);
                 };
                 const std::string text = what_of<PeerLost>([&] {
                   while (true) call_all();
                 });
                 EXPECT_NE(text, "");
                 // The others may first hear that the members change.
                 if (rank == 1) {
                   EXPECT_CONTAINS(text, "an injected fault has cancelled it");
                 }
                 EXPECT_EQ(communicator.elastic()->reconfigure(1).world.size, 3);
                 call_all();
                 session->close();
               });
      EXPECT_EQ(injector->num_strikes(), 2);
    }
  }
}

/// What docs/guide/fault_tolerance.md names.
TEST(FaultInjector, IsPartOfTheOptionsOfALaunch) {
  const auto body = [](Communicator& communicator, const World& /*world*/) {
    std::int64_t step = 0;
    while (step < kSteps) {
      try {
        make_step(communicator, step++);
      } catch (const PeerLost&) {
        step = communicator.elastic()->reconfigure(step).step;
      }
    }
    EXPECT_EQ(communicator.size(), 3);
    return 0;
  };
  const std::chrono::milliseconds delay{20};
  const auto injector = std::make_shared<FaultInjector>(std::vector<Fault>{
      {.kind = Fault::Kind::kFail, .member = 2, .what = "exchange", .round = 10},
      {.kind = Fault::Kind::kSlow, .member = 0, .what = "sum", .times = 5, .delay = delay}});
  LaunchOptions options{.num_ranks = 4, .log_level = LogLevel::kOff};
  options.fault = {.survives = true, .wrap = inject_faults(injector)};
  EXPECT_EQ(launch("threads", options, body), 0);
  EXPECT_EQ(injector->num_strikes(), 6);
}

TEST(FaultInjector, IsRefusedWhereAllEndTogether) {
  LaunchOptions options{.num_ranks = 2, .log_level = LogLevel::kOff};
  options.fault.wrap = inject_faults(std::make_shared<FaultInjector>(std::vector<Fault>{}));
  EXPECT_THROW(open_sessions("threads", options), ConfigError);
}

TEST(FaultInjector, RefusesToDropWhatHasEnded) {
  EXPECT_THROW(FaultInjector({{.kind = Kind::kDrop, .moment = Moment::kAfter}}), ConfigError);
}

}  // namespace
}  // namespace gossamer::elastic_test
