// Runs of the backend `tcp` that go on when ranks die. Ranks are threads; a rank dies when its
// session goes without a word.

#include "test/comm/tcp/tcp_ranks.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "comm/session.hpp"

namespace gossamer::tcp {
namespace {

constexpr std::int64_t kSteps = 12;

/// What a rank has seen at its end.
struct Ended {
  /// Sizes of the worlds in which it has trained.
  std::vector<int> sizes = {};
  std::int64_t steps = 0;
  /// 0 if it has come to the last step; -1 if it has died.
  int code = -1;
  std::string why = {};
};

/// A store that does not answer until it is told to.
class SleepyStore : public MemoryStore {
 public:
  void set(const std::string& key, std::string_view value) override {
    check();
    MemoryStore::set(key, value);
  }
  std::string get(const std::string& key, std::chrono::milliseconds limit) override {
    check();
    return MemoryStore::get(key, limit);
  }
  std::string compare_and_set(const std::string& key, std::string_view expected,
                              std::string_view desired) override {
    check();
    return MemoryStore::compare_and_set(key, expected, desired);
  }
  void sleep(bool sleeps) { sleeps_ = sleeps; }

 private:
  void check() const {
    if (sleeps_) throw CommError({.label = {.what = "start"}}, "the store sleeps");
  }
  std::atomic<bool> sleeps_ = false;
};

struct Plan {
  int size = 3;
  std::int64_t min_ranks = 0;
  /// The step in which a rank dies, by its first rank: when the others exchange.
  std::map<int, std::int64_t> dies = {};
  /// Ranks that die when they have lost a peer for the first time.
  std::vector<int> dies_later = {};
  std::string secret = {};
  std::shared_ptr<SleepyStore> store = std::make_shared<SleepyStore>();
  /// Processes that join when the first rank has made five steps. The run goes on until they are
  /// here.
  int num_joins = 0;
  /// Called before each attempt to make a step.
  std::function<void(std::int64_t step)> at_step = {};

  [[nodiscard]] bool lives(int rank) const {
    return !dies.contains(rank) && std::ranges::find(dies_later, rank) == dies_later.end();
  }
  [[nodiscard]] int last_size() const {
    return size + num_joins - static_cast<int>(dies.size() + dies_later.size());
  }
};

/// One step: a sum over all, and an exchange with a neighbour. Both know how many ranks there are.
void make_step(Communicator& communicator) {
  const int size = communicator.size();
  const int rank = communicator.rank();
  std::vector<std::int64_t> one{1};
  std::vector<std::int64_t> sum{0};
  communicator.all_reduce_sum(block_of(std::span(one)), block_of(std::span(sum)), {}).wait();
  EXPECT_EQ(sum[0], size);
  const int peer = rank % 2 == 0 ? rank + 1 : rank - 1;
  if (peer >= size) return;
  std::vector<std::int64_t> mine(5'000, rank);
  std::vector<std::int64_t> theirs(5'000, -1);
  communicator.exchange(peer, block_of(std::span(mine)), block_of(std::span(theirs)), {}).wait();
  EXPECT_EQ(std::ranges::count(theirs, peer), 5'000);
}

void train(const Plan& plan, int first_rank, Session& session, Ended& ended) {
  Communicator& communicator = session.communicator();
  ASSERT_TRUE(communicator.renews());
  // One may have died before all had met, and others have made a step since.
  const Communicator::Membership first = communicator.membership();
  ended.sizes = {first.world.size};
  const World& world = session.world();
  ended.steps = first.step;
  std::int64_t epoch = first.epoch;
  while (ended.steps < kSteps || (plan.num_joins > 0 && communicator.size() != plan.last_size())) {
    ASSERT_LT(ended.steps, 1'000'000) << "nobody has come";
    if (plan.num_joins > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    const auto death = plan.dies.find(first_rank);
    if (death != plan.dies.end() && death->second <= ended.steps) return;
    try {
      if (plan.at_step) plan.at_step(ended.steps);
      make_step(communicator);
      ++ended.steps;
      continue;
    } catch (const PeerLost&) {
    }
    if (std::ranges::find(plan.dies_later, first_rank) != plan.dies_later.end()) return;
    // The step under way counts as made.
    const Communicator::Membership renewal = communicator.renew(++ended.steps);
    EXPECT_GT(renewal.epoch, epoch);
    EXPECT_GE(renewal.step, ended.steps);
    const std::int64_t id = renewal.members[static_cast<std::size_t>(renewal.world.rank)];
    if (first_rank >= 0) {
      EXPECT_EQ(id, first_rank);
    } else {
      EXPECT_GE(id, plan.size);
    }
    EXPECT_EQ(world.size, renewal.world.size);
    EXPECT_EQ(world.rank, renewal.world.rank);
    EXPECT_EQ(communicator.size(), renewal.world.size);
    epoch = renewal.epoch;
    ended.steps = renewal.step;
    ended.sizes.push_back(renewal.world.size);
  }
  session.close();
  ended.code = 0;
}

/// One process of the run, from its start to its end. `first_rank`: negative for one that joins.
Ended take_part(const Plan& plan, int first_rank) {
  Ended ended;
  LaunchOptions options = rank_options(plan.store, first_rank, plan.size);
  options.timeout_s = 30.0;
  options.log_level = LogLevel::kOff;
  options.fault = {
      .survives = true, .min_ranks = plan.min_ranks, .silence_s = 20.0, .joins = first_rank < 0};
  options.meeting.secret = plan.secret;
  try {
    train(plan, first_rank, *open_sessions("tcp", options).front(), ended);
  } catch (const std::exception& error) {
    ended.code = static_cast<int>(exit_code_of(error));
    ended.why = error.what();
  }
  return ended;
}

/// How all ranks end, and after them those that have joined.
std::vector<Ended> play(Plan plan) {
  std::vector<Ended> ends(static_cast<std::size_t>(plan.size + plan.num_joins));
  std::vector<std::jthread> joiners;
  std::once_flag once;
  const auto let_join = [&] {
    for (int i = 0; i < plan.num_joins; ++i) {
      joiners.emplace_back(
          [&, i] { ends[static_cast<std::size_t>(plan.size + i)] = take_part(plan, -1); });
    }
  };
  plan.at_step = [&, before = plan.at_step](std::int64_t step) {
    if (before) before(step);
    if (step >= 5) std::call_once(once, let_join);
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < plan.size; ++rank) {
      threads.emplace_back(
          [&, rank] { ends[static_cast<std::size_t>(rank)] = take_part(plan, rank); });
    }
  }
  joiners.clear();
  return ends;
}

/// All that do not die come to the end together.
void expect_survival(const Plan& plan, const std::vector<Ended>& ends) {
  std::int64_t steps = 0;
  for (int rank = 0; rank < plan.size + plan.num_joins; ++rank) {
    const Ended& ended = ends[static_cast<std::size_t>(rank)];
    if (!plan.lives(rank)) {
      EXPECT_EQ(ended.code, -1) << rank << ": " << ended.why;
      continue;
    }
    ASSERT_EQ(ended.code, 0) << rank << ": " << ended.why;
    if (steps == 0) steps = ended.steps;
    EXPECT_GE(ended.steps, kSteps) << rank;
    EXPECT_EQ(ended.steps, steps) << rank;
    EXPECT_EQ(ended.sizes.back(), plan.last_size());
  }
}

class AnyRank : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(AnyRank, MayDieWhileTheOthersGoOn) {
  const auto [size, victim] = GetParam();
  const Plan plan{.size = size, .dies = {{victim, 5}}};
  expect_survival(plan, play(plan));
}

INSTANTIATE_TEST_SUITE_P(Renewing, AnyRank,
                         testing::Values(std::pair(3, 0), std::pair(3, 1), std::pair(3, 2),
                                         std::pair(4, 0), std::pair(4, 3), std::pair(5, 2),
                                         std::pair(8, 4)),
                         [](const auto& tested) {
                           return "of_" + std::to_string(tested.param.first) + "_rank_" +
                                  std::to_string(tested.param.second);
                         });

TEST(Renewing, LosesTwoAtOnce) {
  const Plan plan{.size = 5, .dies = {{0, 4}, {3, 4}}};
  expect_survival(plan, play(plan));
}

TEST(Renewing, LosesOneAfterAnother) {
  const Plan plan{.size = 7, .dies = {{0, 2}, {1, 5}, {6, 8}}};
  expect_survival(plan, play(plan));
}

TEST(Renewing, LosesOneWhileItRecovers) {
  const Plan plan{.size = 5, .dies = {{4, 3}}, .dies_later = {0}};
  expect_survival(plan, play(plan));
}

TEST(Renewing, DiesBeforeTheFirstStep) {
  const Plan plan{.size = 4, .dies = {{2, 0}}};
  expect_survival(plan, play(plan));
}

TEST(Renewing, KeepsTheSecret) {
  const Plan plan{.size = 3, .dies = {{1, 5}}, .secret = "the secret of these ranks"};
  expect_survival(plan, play(plan));
}

/// With a majority of those before, two of four are too few. Rank 2 dies before it has agreed to go
/// on without rank 1.
TEST(Renewing, LeavesWhenTooFewAreLeft) {
  const std::vector<Ended> ends = play({.size = 4, .dies = {{1, 5}}, .dies_later = {2}});
  for (const std::size_t rank : {0U, 3U}) {
    EXPECT_EQ(ends[rank].code, static_cast<int>(ExitCode::kPeerLost)) << ends[rank].why;
    EXPECT_NE(ends[rank].why.find("too few ranks are left"), std::string::npos) << ends[rank].why;
  }
}

/// The code of the rank that is left is that of its own end, not of the other rank's.
TEST(Renewing, EndsInGoodOrderWhenItCannotGoOn) {
  const LaunchOptions options{
      .timeout_s = 30.0, .fault = {.survives = true}, .log_level = LogLevel::kOff};
  const auto body = [](Communicator& communicator, const World& world) {
    if (world.rank == 1) throw DataError("torn file");
    try {
      while (true) make_step(communicator);
    } catch (const PeerLost&) {
      communicator.renew(1);
    }
    return 0;
  };
  EXPECT_EQ(launch_ranks(2, options, body), (std::vector<int>{static_cast<int>(ExitCode::kPeerLost),
                                                              static_cast<int>(ExitCode::kData)}));
}

TEST(Renewing, GoesOnWithAsFewAsAllowed) {
  const Plan plan{.size = 4, .min_ranks = 1, .dies = {{0, 2}, {1, 2}, {3, 6}}};
  expect_survival(plan, play(plan));
}

/// While nobody dies the store may be away. It has to come back for the others to go on.
TEST(Renewing, WaitsForTheStore) {
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

TEST(Renewing, LetsAProcessJoin) {
  const Plan plan{.size = 3, .num_joins = 1};
  expect_survival(plan, play(plan));
}

TEST(Renewing, GrowsFromOneToEight) {
  const Plan plan{.size = 1, .num_joins = 7};
  expect_survival(plan, play(plan));
}

TEST(Renewing, LosesTwoOfFourAndGetsTwo) {
  const Plan plan{.size = 4, .dies = {{0, 2}, {2, 4}}, .num_joins = 2};
  expect_survival(plan, play(plan));
}

TEST(Renewing, LetsAProcessJoinWhileAnotherDies) {
  const Plan plan{.size = 5, .dies = {{1, 5}}, .dies_later = {0}, .num_joins = 2};
  expect_survival(plan, play(plan));
}

TEST(Renewing, RefusesWhoHasAnotherSecret) {
  const auto store = std::make_shared<SleepyStore>();
  std::jthread run([&] {
    const Plan plan{
        .size = 2, .secret = "the secret of these ranks", .store = store, .num_joins = 0};
    expect_survival(plan, play(plan));
  });
  const Ended stranger =
      take_part({.size = 2, .secret = "another secret", .store = store}, /*first_rank=*/-1);
  EXPECT_NE(stranger.code, 0);
  EXPECT_NE(stranger.why.find("is not signed with this rank's secret"), std::string::npos)
      << stranger.why;
}

}  // namespace
}  // namespace gossamer::tcp
