// Runs that go on when ranks die, on each backend. Ranks are threads; a rank dies when its session
// goes without a word.

#include "test/base/thrown.hpp"
#include "test/comm/elastic_run.hpp"
#include "test/comm/tcp/tcp_ranks.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "comm/backends.hpp"

namespace gossamer::elastic_test {
namespace {

std::string backend_of(const testing::TestParamInfo<std::string>& info) { return info.param; }

/// A backend, a number of ranks, and the one that dies.
using Victim = std::tuple<std::string, std::pair<int, int>>;

std::string name_of_victim(const testing::TestParamInfo<Victim>& info) {
  const auto& [backend, which] = info.param;
  return concat(backend, "_of_", which.first, "_rank_", which.second);
}

class AnyRank : public testing::TestWithParam<Victim> {};

TEST_P(AnyRank, MayDieWhileTheOthersGoOn) {
  const auto& [backend, which] = GetParam();
  const auto [size, victim] = which;
  const Plan plan{.backend = backend, .size = size, .dies = {{victim, 5}}};
  expect_survival(plan, play(plan));
}

INSTANTIATE_TEST_SUITE_P(Elastic, AnyRank,
                         testing::Combine(testing::Values("threads", "tcp"),
                                          testing::Values(std::pair(3, 0), std::pair(3, 1),
                                                          std::pair(3, 2), std::pair(4, 0),
                                                          std::pair(4, 3), std::pair(5, 2),
                                                          std::pair(8, 4))),
                         name_of_victim);

/// On every backend.
class Elastic : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Of, Elastic, testing::Values("threads", "tcp"), backend_of);

TEST_P(Elastic, LosesTwoAtOnce) {
  const Plan plan{.backend = GetParam(), .size = 5, .dies = {{0, 4}, {3, 4}}};
  expect_survival(plan, play(plan));
}

TEST_P(Elastic, LosesOneAfterAnother) {
  const Plan plan{.backend = GetParam(), .size = 7, .dies = {{0, 2}, {1, 5}, {6, 8}}};
  expect_survival(plan, play(plan));
}

TEST_P(Elastic, LosesOneWhileItRecovers) {
  const Plan plan{.backend = GetParam(), .size = 5, .dies = {{4, 3}}, .dies_later = {0}};
  expect_survival(plan, play(plan));
}

TEST_P(Elastic, DiesBeforeTheFirstStep) {
  const Plan plan{.backend = GetParam(), .size = 4, .dies = {{2, 0}}};
  expect_survival(plan, play(plan));
}

TEST(ElasticTcp, KeepsTheSecret) {
  const Plan plan{.size = 3, .dies = {{1, 5}}, .secret = "the secret of these ranks"};
  expect_survival(plan, play(plan));
}

/// With a majority of those before, two of four are too few. Rank 2 dies before it has agreed to go
/// on without rank 1.
TEST_P(Elastic, LeavesWhenTooFewAreLeft) {
  const std::vector<Ended> ends =
      play({.backend = GetParam(), .size = 4, .dies = {{1, 5}}, .dies_later = {2}});
  for (const std::size_t rank : {0U, 3U}) {
    EXPECT_EQ(ends[rank].code, static_cast<int>(ExitCode::kPeerLost)) << ends[rank].why;
    EXPECT_CONTAINS(ends[rank].why, "too few ranks are left");
  }
}

/// Of a world of 4 with nodes of 2, three ranks are left. Rank 1 leaves after all ranks have opened
/// their session.
TEST_P(Elastic, TakesEachRankForANodeWhereNodesDoNotFit) {
  LaunchOptions options{.node_size = 2, .timeout_s = 30.0, .log_level = LogLevel::kOff};
  options.fault = {.survives = true, .silence_s = 20.0};
  on_ranks(GetParam(), 4, std::make_shared<MemoryStore>(), options,
           [](int rank, const OpenSession& open) {
             const auto session = open();
             EXPECT_EQ(session->world().node_size, 2);
             if (rank == 1) return session->communicator().barrier();
             EXPECT_NE(what_of<PeerLost>([&] {
                         while (true) session->communicator().barrier();
                       }),
                       "");
             EXPECT_EQ(session->communicator().elastic()->reconfigure(1).world.node_size, 1);
             session->close();
           });
}

/// All ranks live, and rank 1 never exchanges with rank 0. Without an end the others would train
/// alone, and wait for each exchange in vain.
TEST_P(Elastic, EndsWhenNoExchangeEverEnds) {
  LaunchOptions options{.timeout_s = 2.0, .log_level = LogLevel::kOff};
  options.fault = {.survives = true, .silence_s = 20.0};
  std::mutex mutex;
  std::vector<std::string> ends;
  on_ranks(GetParam(), 3, std::make_shared<MemoryStore>(), options,
           [&](int rank, const OpenSession& open) {
             const auto session = open();
             Communicator& communicator = session->communicator();
             std::vector<float> mine(3);
             std::vector<float> theirs(3);
             const auto live = [&] {
               Request request;
               if (rank == 0) {
                 request = communicator.exchange(1, block_of(std::span(mine)),
                                                 block_of(std::span(theirs)), {});
               }
               while (true) {
                 communicator.check();
                 std::this_thread::sleep_for(std::chrono::milliseconds(5));
               }
             };
             std::int64_t step = 0;
             const std::string why = what_of<CommError>([&] {
               while (true) {
                 EXPECT_NE(what_of<PeerLost>(live), "");
                 EXPECT_EQ(communicator.elastic()->reconfigure(++step).world.size, 3);
               }
             });
             EXPECT_EQ(step, 3);
             {
               const std::lock_guard lock(mutex);
               ends.push_back(why);
             }
             session->abort(ExitCode::kPeerLost, why);
           });
  EXPECT_EQ(ends.size(), 3U);
  for (const std::string& why : ends) {
    EXPECT_CONTAINS(why, "exchanges have failed 3 times in a row");
  }
}

/// Rank 1 fails. What launch() returns when the others go on, or cannot.
int code_of_launch(int size) {
  const LaunchOptions options{.num_ranks = size,
                              .timeout_s = 30.0,
                              .fault = {.survives = true},
                              .log_level = LogLevel::kOff};
  return launch("threads", options, [](Communicator& communicator, const World& world) {
    if (world.rank == 1) throw DataError("torn file");
    const std::string text = what_of<PeerLost>([&] {
      while (true) make_step(communicator, 0);
    });
    EXPECT_TRUE(contains(text, "torn file") || contains(text, "the members of the run change"))
        << text;
    communicator.elastic()->reconfigure(1);
    make_step(communicator, 1);
    return 0;
  });
}

TEST(ElasticThreads, EndInGoodOrderIfOneComesToTheEnd) { EXPECT_EQ(code_of_launch(3), 0); }

TEST(ElasticThreads, EndWithTheFirstFailureWhereTooFewAreLeft) {
  EXPECT_EQ(code_of_launch(2), static_cast<int>(ExitCode::kData));
}

/// The code of the rank that is left is that of its own end, not of the other rank's.
TEST(ElasticTcp, EndsInGoodOrderWhenItCannotGoOn) {
  const LaunchOptions options{
      .timeout_s = 30.0, .fault = {.survives = true}, .log_level = LogLevel::kOff};
  const auto body = [](Communicator& communicator, const World& world) {
    if (world.rank == 1) throw DataError("torn file");
    try {
      while (true) make_step(communicator, 0);
    } catch (const PeerLost&) {
      communicator.elastic()->reconfigure(1);
    }
    return 0;
  };
  EXPECT_EQ(
      tcp::launch_ranks(2, options, body),
      (std::vector<int>{static_cast<int>(ExitCode::kPeerLost), static_cast<int>(ExitCode::kData)}));
}

TEST_P(Elastic, GoesOnWithAsFewAsAllowed) {
  const Plan plan{
      .backend = GetParam(), .size = 5, .min_ranks = 2, .dies = {{0, 2}, {1, 5}, {3, 8}}};
  expect_survival(plan, play(plan));
}

TEST_P(Elastic, LeavesWhenFewerThanAllowedAreLeft) {
  const std::vector<Ended> ends =
      play({.backend = GetParam(), .size = 4, .min_ranks = 4, .dies = {{1, 5}}});
  for (const std::size_t rank : {0U, 2U, 3U}) {
    EXPECT_CONTAINS(ends[rank].why, "too few ranks are left");
  }
}

/// While nobody dies the store may be away. It has to come back for the others to go on.
TEST(ElasticTcp, WaitsForTheStore) {
  Plan plan{.size = 3, .dies = {{0, 8}}};
  std::jthread waker;
  plan.at_step = [&, store = plan.store,
                  once = std::make_shared<std::once_flag>()](std::int64_t step) {
    if (step < 2) return;
    std::call_once(*once, [&] {
      store->sleep(true);
      waker = std::jthread([store] {
        std::this_thread::sleep_for(std::chrono::seconds(2));
        store->sleep(false);
      });
    });
  };
  expect_survival(plan, play(plan));
}

TEST(ElasticTcp, LetsAProcessJoin) {
  const Plan plan{.size = 3, .num_joins = 1};
  expect_survival(plan, play(plan));
}

TEST(ElasticTcp, GrowsFromOneToEight) {
  const Plan plan{.size = 1, .num_joins = 7};
  expect_survival(plan, play(plan));
}

TEST(ElasticTcp, LosesTwoOfFourAndGetsTwo) {
  const Plan plan{.size = 4, .dies = {{0, 2}, {2, 4}}, .num_joins = 2};
  expect_survival(plan, play(plan));
}

TEST(ElasticTcp, LetsAProcessJoinWhileAnotherDies) {
  const Plan plan{.size = 5, .dies = {{1, 5}}, .dies_later = {0}, .num_joins = 2};
  expect_survival(plan, play(plan));
}

/// The options of a run of one member.
LaunchOptions lone_options() {
  LaunchOptions options{.timeout_s = 30.0, .log_level = LogLevel::kOff};
  options.fault = {.survives = true, .silence_s = 20.0};
  options.meeting.store = std::make_shared<MemoryStore>();
  options.meeting.rank = 0;
  options.meeting.size = 1;
  return options;
}

/// The options of a process that joins the run of `options`.
LaunchOptions joining(LaunchOptions options) {
  options.fault.joins = true;
  options.meeting.rank = -1;
  return options;
}

TEST(ElasticTcp, LetsNobodyInMeanwhile) {
  const LaunchOptions options = lone_options();
  const auto member = std::move(open_sessions("tcp", options).front());
  Communicator& communicator = member->communicator();
  LaunchOptions joins = joining(options);
  // One that is told to stop waits no longer.
  joins.while_waiting = [] { throw CommError({}, "told to stop"); };
  EXPECT_THROW(open_sessions("tcp", joins), CommError);
  joins.while_waiting = nullptr;
  const std::jthread newcomer([joins] {
    const auto session = std::move(open_sessions("tcp", joins).front());
    session->communicator().barrier();
    session->close();
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (std::chrono::steady_clock::now() < end) {
    EXPECT_EQ(what_of<PeerLost>([&] { communicator.check(); }), "");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  communicator.elastic()->admit(true);
  EXPECT_NE(what_of<PeerLost>([&] {
              while (true) communicator.check();
            }),
            "");
  while (communicator.size() < 2) communicator.elastic()->reconfigure(0);
  communicator.barrier();
  member->close();
}

/// A member takes a process in, which fails in the world that is the `worlds`-th one it enters.
/// Calls `then` with the member's communicator when the member has noticed.
void lose_newcomer(int worlds, const std::function<void(Communicator& communicator)>& then) {
  const LaunchOptions options = lone_options();
  const auto member = std::move(open_sessions("tcp", options).front());
  Communicator& communicator = member->communicator();
  communicator.elastic()->admit(true);
  const std::jthread newcomer([joins = joining(options), worlds] {
    const auto session = std::move(open_sessions("tcp", joins).front());
    for (int world = 1; world < worlds; ++world) session->communicator().elastic()->reconfigure(0);
    session->communicator().barrier();
    session->abort(ExitCode::kConfig, "does not fit");
  });
  const auto has_change = [&] {
    return what_of<PeerLost>([&] {
      while (true) communicator.check();
    });
  };
  EXPECT_NE(has_change(), "");
  for (int world = 0; world < worlds; ++world) communicator.elastic()->reconfigure(0);
  EXPECT_EQ(communicator.size(), 2);
  static_cast<void>(what_of<PeerLost>([&] { communicator.barrier(); }));
  EXPECT_NE(has_change(), "");
  then(communicator);
  member->close();
}

TEST(ElasticTcp, AMemberGoesOnWithoutAProcessThatHasJustJoined) {
  lose_newcomer(1, [](Communicator& communicator) {
    EXPECT_EQ(communicator.elastic()->reconfigure(0).world.size, 1);
  });
}

TEST(ElasticTcp, AProcessVotesFromItsSecondWorldOn) {
  lose_newcomer(2, [](Communicator& communicator) {
    const std::string why = what_of<CommError>([&] { communicator.elastic()->reconfigure(0); });
    EXPECT_CONTAINS(why, "too few ranks are left");
  });
}

TEST(ElasticTcp, RefusesWhoHasAnotherSecret) {
  const auto store = std::make_shared<SleepyStore>();
  std::jthread run([&] {
    const Plan plan{
        .size = 2, .secret = "the secret of these ranks", .store = store, .num_joins = 0};
    expect_survival(plan, play(plan));
  });
  const Ended stranger = join({.size = 2, .secret = "another secret", .store = store});
  EXPECT_NE(stranger.code, 0);
  EXPECT_CONTAINS(stranger.why, "is not signed with this rank's secret");
}

}  // namespace
}  // namespace gossamer::elastic_test
