#include "comm/membership/agreement.hpp"

#include "test/comm/membership/explorer.hpp"

#include <cstdint>
#include <ostream>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer::membership {
namespace {

Epoch epoch_of(std::int64_t number, const std::vector<MemberId>& ids, std::int64_t step = 0) {
  Epoch epoch{.number = number, .step = step, .next_id = 0};
  for (const MemberId id : ids) {
    epoch.members.push_back({id, "at " + std::to_string(id)});
    epoch.next_id = id + 1;
  }
  return epoch;
}

/// The actions of one kind, in order.
template <class Kind>
std::vector<Kind> only(const Actions& actions) {
  std::vector<Kind> result;
  for (const Action& action : actions) {
    if (const Kind* const found = std::get_if<Kind>(&action)) result.push_back(*found);
  }
  return result;
}

std::vector<MemberId> told(const Actions& actions) {
  std::vector<MemberId> ids;
  for (const Tell& tell : only<Tell>(actions)) ids.push_back(tell.to);
  return ids;
}

using Ids = std::vector<MemberId>;

TEST(Agreement, GoesOnWithoutALostMember) {
  Agreement member(0, epoch_of(0, {0, 1, 2, 3}), {});
  const Actions stopped = member.lose(2, /*step=*/40);
  EXPECT_EQ(member.phase(), Agreement::Phase::kAgreeing);
  EXPECT_EQ(told(stopped), (Ids{1, 3}));
  EXPECT_TRUE(only<Propose>(stopped).empty());

  EXPECT_TRUE(
      only<Propose>(member.hear({.from = 1, .epoch = 0, .step = 42, .lost = {2}}, 40)).empty());
  const Actions agreed = member.hear({.from = 3, .epoch = 0, .step = 41, .lost = {2}}, 40);
  const std::vector<Propose> proposals = only<Propose>(agreed);
  ASSERT_EQ(proposals.size(), 1);
  Epoch next = epoch_of(1, {0, 1, 3}, /*step=*/42);
  EXPECT_EQ(proposals.front().expected, epoch_of(0, {0, 1, 2, 3}));
  EXPECT_EQ(proposals.front().desired, next);

  const Actions adopted = member.learn(next);
  EXPECT_EQ(member.phase(), Agreement::Phase::kServing);
  EXPECT_EQ(member.epoch(), next);
  ASSERT_EQ(only<Adopt>(adopted).size(), 1);
  // Nobody else has heard the store's answer.
  ASSERT_EQ(only<Announce>(adopted).size(), 2);
  EXPECT_EQ(only<Announce>(adopted)[0].to, 1);
  EXPECT_EQ(only<Announce>(adopted)[1].to, 3);
}

TEST(Agreement, TellsThoseWhoShouldProposeAlone) {
  Agreement member(2, epoch_of(0, {0, 1, 2, 3}), {});
  const Actions stopped = member.hear({.from = 3, .epoch = 0, .step = 7, .newcomers = {"at 9"}}, 6);
  EXPECT_EQ(told(stopped), (Ids{0}));
  EXPECT_EQ(only<Tell>(stopped).front().report.step, 6);
  // The one that should propose is lost.
  EXPECT_EQ(told(member.lose(0, 6)), (Ids{1, 3}));
  // Steps do not count any more.
  EXPECT_EQ(told(member.hear({.from = 1, .epoch = 0, .step = 7, .lost = {0}}, 6)), Ids{});
}

TEST(Agreement, LetsProcessesIn) {
  Agreement member(0, epoch_of(3, {0, 4}, 100), {});
  EXPECT_EQ(told(member.welcome("at y", 120)), (Ids{4}));
  EXPECT_TRUE(member.welcome("at y", 120).empty());
  const Actions agreed =
      member.hear({.from = 4, .epoch = 3, .step = 119, .newcomers = {"at x"}}, 120);
  const std::vector<Propose> proposals = only<Propose>(agreed);
  ASSERT_EQ(proposals.size(), 1);
  const Epoch& next = proposals.front().desired;
  EXPECT_EQ(next.members,
            (std::vector<Member>{{0, "at 0"}, {4, "at 4"}, {5, "at x"}, {6, "at y"}}));
  EXPECT_EQ(next.next_id, 7);
  EXPECT_EQ(next.step, 120);
  const std::vector<Admit> admissions = only<Admit>(member.learn(next));
  ASSERT_EQ(admissions.size(), 2);
  EXPECT_EQ(admissions[0].to, "at x");
  // A process that asks again has missed the answer.
  EXPECT_EQ(only<Admit>(member.welcome("at y", 121)).size(), 1);
  EXPECT_EQ(member.phase(), Agreement::Phase::kServing);
}

TEST(Agreement, LeavesIfTooFewAreLeft) {
  const Epoch epoch = epoch_of(0, {0, 1, 2, 3});
  Agreement member(2, epoch, {});
  member.lose(0, 5);
  member.lose(1, 5);
  // The other one may know an epoch in which they are enough, and then the store.
  EXPECT_EQ(only<Look>(member.hear({.from = 3, .epoch = 0, .step = 5, .lost = {0, 1}}, 5)).size(),
            1);
  EXPECT_TRUE(member.learn(epoch).empty());
  const std::vector<Leave> ends = only<Leave>(member.find(epoch));
  ASSERT_EQ(ends.size(), 1);
  EXPECT_EQ(ends.front().why, Leave::Why::kTooFew);
  EXPECT_EQ(member.phase(), Agreement::Phase::kEnded);
  EXPECT_TRUE(member.lose(3, 5).empty());
  EXPECT_TRUE(member.learn(epoch_of(1, {2, 3})).empty());

  Agreement small(3, epoch, Quorum{.least = 2});
  small.lose(0, 5);
  EXPECT_TRUE(only<Look>(small.lose(1, 5)).empty());
  EXPECT_EQ(only<Look>(small.lose(2, 5)).size(), 1);
}

TEST(Agreement, GoesOnIfTheStoreKnowsBetter) {
  Agreement member(3, epoch_of(0, {0, 1, 2, 3}), {});
  member.lose(0, 5);
  member.lose(1, 5);
  EXPECT_EQ(only<Look>(member.lose(2, 5)).size(), 1);
  EXPECT_EQ(only<Adopt>(member.find(epoch_of(1, {1, 2, 3}, 6))).size(), 1);
  EXPECT_EQ(member.phase(), Agreement::Phase::kServing);
}

TEST(Agreement, IsFencedByAnEpochWithoutIt) {
  Agreement member(1, epoch_of(0, {0, 1, 2}), {});
  const Actions actions = member.learn(epoch_of(1, {0, 2}));
  ASSERT_EQ(only<Leave>(actions).size(), 1);
  EXPECT_EQ(only<Leave>(actions).front().why, Leave::Why::kFenced);
}

TEST(Agreement, LeavesOutWhoReachesFewestOthers) {
  // 0 and 3 cannot reach each other, and 3 cannot reach 4 either.
  Agreement member(0, epoch_of(0, {0, 1, 2, 3, 4}), {});
  member.hear({.from = 3, .epoch = 0, .step = 1, .lost = {4}}, 1);
  member.hear({.from = 4, .epoch = 0, .step = 1, .lost = {3}}, 1);
  member.hear({.from = 1, .epoch = 0, .step = 1, .lost = {3}}, 1);
  const Actions agreed = member.hear({.from = 2, .epoch = 0, .step = 1}, 1);
  ASSERT_EQ(only<Propose>(agreed).size(), 1);
  EXPECT_EQ(only<Propose>(agreed).front().desired, epoch_of(1, {0, 1, 2, 4}, /*step=*/1));
}

TEST(Agreement, TellsTheEpochToWhoIsBehind) {
  Agreement member(0, epoch_of(5, {0, 2}), {});
  const Actions answer = member.hear({.from = 1, .epoch = 4, .step = 3}, 9);
  ASSERT_EQ(only<Announce>(answer).size(), 1);
  EXPECT_EQ(only<Announce>(answer).front().to, 1);
  EXPECT_EQ(member.phase(), Agreement::Phase::kServing);
  // It is behind itself: it asks, and remembers the report.
  const Actions question = member.hear({.from = 2, .epoch = 6, .step = 9}, 9);
  EXPECT_EQ(told(question), (Ids{2}));
  EXPECT_EQ(member.phase(), Agreement::Phase::kAgreeing);
  EXPECT_EQ(only<Propose>(member.learn(epoch_of(6, {0, 2}, 9))).size(), 1);
}

TEST(Agreement, RefusesTwoEpochsOfOneNumber) {
  Agreement member(0, epoch_of(5, {0, 2}), {});
  EXPECT_TRUE(member.learn(epoch_of(5, {0, 2})).empty());
  EXPECT_TRUE(member.learn(epoch_of(4, {0, 1, 2})).empty());
  EXPECT_THROW(member.learn(epoch_of(5, {0, 1})), std::logic_error);
  EXPECT_THROW(Agreement(1, epoch_of(5, {0, 2}), {}), std::logic_error);
}

// ---- all orders of events ----------------------------------------------------------------------

struct Explored {
  std::string name;
  Setting setting;
  /// Epochs that the longest line has.
  std::int64_t epochs = 0;
  bool is_long = false;
};

void PrintTo(const Explored& explored, std::ostream* out) { *out << explored.name; }

class EveryOrder : public testing::TestWithParam<Explored> {};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSlow = true;
#else
constexpr bool kIsSlow = false;
#endif

TEST_P(EveryOrder, KeepsOneLineAndEnds) {
  if (GetParam().is_long && kIsSlow) GTEST_SKIP() << "takes a minute with sanitizers";
  const Exploration result = explore(GetParam().setting);
  EXPECT_EQ(result.fault, "");
  EXPECT_EQ(result.epochs, GetParam().epochs);
  EXPECT_GT(result.training, 0);
  RecordProperty("states", std::to_string(result.states));
}

const auto name_of = [](const auto& test) { return test.param.name; };

INSTANTIATE_TEST_SUITE_P(
    Agreement, EveryOrder,
    testing::Values(Explored{"TwoOneDies", {.members = 2, .deaths = 1, .quorum = {.least = 1}}, 1},
                    Explored{"TwoOneDiesOneJoins",
                             {.members = 2, .deaths = 1, .joins = 1, .quorum = {.least = 1}},
                             2},
                    Explored{
                        "TwoConnectionBreaksOneJoins",
                        {.members = 2, .broken_connections = 1, .joins = 1, .quorum = {.least = 1}},
                        4},
                    Explored{"TwoTwoJoin", {.members = 2, .joins = 2}, 2},
                    Explored{"ThreeOneDies", {.members = 3, .deaths = 1, .steps = 2}, 1},
                    Explored{"ThreeTwoDie", {.members = 3, .deaths = 2, .steps = 1}, 1},
                    Explored{"ThreeTwoDieWithoutMajority",
                             {.members = 3, .deaths = 2, .steps = 1, .quorum = {.least = 1}},
                             2},
                    Explored{"ThreeTwoConnectionsBreak",
                             {.members = 3, .broken_connections = 2, .quorum = {.least = 1}},
                             2},
                    Explored{"ThreeOneDiesOneConnectionBreaks",
                             {.members = 3, .deaths = 1, .broken_connections = 1},
                             1},
                    Explored{"FourTwoDie", {.members = 4, .deaths = 2}, 2, /*is_long=*/true},
                    Explored{"ThreeOneDiesOneJoins",
                             {.members = 3, .deaths = 1, .joins = 1},
                             2,
                             /*is_long=*/true}),
    name_of);

// They take minutes: --gtest_also_run_disabled_tests.
INSTANTIATE_TEST_SUITE_P(
    DISABLED_Agreement, EveryOrder,
    testing::Values(
        Explored{"ThreeTwoDieOneJoins", {.members = 3, .deaths = 2, .joins = 1}, 3, true},
        Explored{"FourOneDiesOneConnectionBreaks",
                 {.members = 4, .deaths = 1, .broken_connections = 1},
                 2,
                 true},
        Explored{"FourTwoConnectionsBreak", {.members = 4, .broken_connections = 2}, 2, true}),
    name_of);

TEST(Explorer, FindsAStoreThatDoesNotCompare) {
  const Exploration result = explore(
      {.members = 3, .broken_connections = 2, .quorum = {.least = 1}, .store_compares = false});
  EXPECT_NE(result.fault, "");
}

}  // namespace
}  // namespace gossamer::membership
