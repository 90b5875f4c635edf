#include "comm/elastic/agreement.hpp"

#include <cstdint>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "comm/elastic/newcomer.hpp"

namespace gossamer::membership {
namespace {

Epoch epoch_of(std::int64_t number, const std::vector<MemberId>& ids, std::int64_t step = 0) {
  Epoch epoch{.number = number, .step = step, .next_id = 0};
  for (const MemberId id : ids) {
    epoch.members.push_back({id, "at " + std::to_string(id)});
    epoch.next_id = id + 1;
  }
  epoch.num_voters = std::ssize(epoch.members);
  return epoch;
}

Report report_of(MemberId from, std::int64_t epoch, std::int64_t step,
                 std::set<MemberId> lost = {}) {
  return {.from = {from, "at " + std::to_string(from)},
          .epoch = epoch,
          .step = step,
          .lost = std::move(lost)};
}

/// The address of a rank of nodes of two.
std::string address_in_node(MemberId id) {
  return "at " + std::to_string(id) + " as " + std::to_string(id % 2) + "/2 of " +
         std::to_string(id / 2);
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

using Names = std::vector<std::string>;

Names told(const Actions& actions) {
  Names names;
  for (const Tell& tell : only<Tell>(actions)) names.push_back(tell.to);
  return names;
}

Names announced(const Actions& actions) {
  Names names;
  for (const Announce& announce : only<Announce>(actions)) names.push_back(announce.to);
  return names;
}

TEST(Agreement, GoesOnWithoutALostMember) {
  Agreement member(0, epoch_of(0, {0, 1, 2, 3}), {});
  const Actions stopped = member.lose(2, /*step=*/40);
  EXPECT_EQ(member.phase(), Agreement::Phase::kAgreeing);
  EXPECT_EQ(told(stopped), (Names{"at 1", "at 3"}));
  EXPECT_TRUE(only<Propose>(stopped).empty());

  EXPECT_TRUE(only<Propose>(member.hear(report_of(1, 0, 42, {2}), 40)).empty());
  const std::vector<Propose> proposals = only<Propose>(member.hear(report_of(3, 0, 41, {2}), 40));
  ASSERT_EQ(proposals.size(), 1);
  const Epoch next = epoch_of(1, {0, 1, 3}, /*step=*/42);
  EXPECT_EQ(proposals.front().expected, epoch_of(0, {0, 1, 2, 3}));
  EXPECT_EQ(proposals.front().desired, next);

  const Actions adopted = member.find(0, next);
  EXPECT_EQ(member.phase(), Agreement::Phase::kServing);
  EXPECT_EQ(member.epoch(), next);
  ASSERT_EQ(only<Adopt>(adopted).size(), 1);
  // Nobody else has heard the store's answer.
  EXPECT_EQ(announced(adopted), (Names{"at 1", "at 3"}));
}

TEST(Agreement, TellsOnlyWhoShouldPropose) {
  Agreement member(2, epoch_of(0, {0, 1, 2, 3}), {});
  const Actions stopped = member.hear(report_of(3, 0, 7), 6);
  EXPECT_EQ(told(stopped), (Names{"at 0"}));
  EXPECT_EQ(only<Tell>(stopped).front().report.step, 6);
  // The one that should propose is lost. Steps do not count any more.
  const Actions more = member.lose(0, 9);
  EXPECT_EQ(told(more), (Names{"at 1", "at 3"}));
  EXPECT_EQ(only<Tell>(more).front().report.step, 6);
  EXPECT_TRUE(member.hear(report_of(1, 0, 7, {0}), 9).empty());
}

TEST(Agreement, AnswersWhoKnowsOfOtherLosses) {
  // 1 takes itself for the one that proposes, and 2 takes 0 for it.
  Agreement member(2, epoch_of(0, {0, 1, 2, 3, 4}), {});
  EXPECT_EQ(told(member.hear(report_of(1, 0, 7, {0}), 6)), (Names{"at 1", "at 0"}));
}

TEST(Agreement, AsksThoseWhoHaveNotReported) {
  Agreement member(0, epoch_of(0, {0, 1, 2, 3}), {});
  EXPECT_EQ(told(member.hear(report_of(1, 0, 7), 7)), (Names{"at 1", "at 2", "at 3"}));
}

TEST(Agreement, LetsProcessesIn) {
  Agreement member(0, epoch_of(3, {0, 4}, 100), {});
  EXPECT_EQ(told(member.welcome("at y", 120)), (Names{"at 4"}));
  EXPECT_TRUE(member.welcome("at y", 120).empty());
  EXPECT_TRUE(member.welcome("two\nlines", 120).empty());
  Report report = report_of(4, 3, 119);
  report.newcomers = {"at x"};
  const std::vector<Propose> proposals = only<Propose>(member.hear(report, 120));
  ASSERT_EQ(proposals.size(), 1);
  const Epoch& next = proposals.front().desired;
  EXPECT_EQ(next.members,
            (std::vector<Member>{{0, "at 0"}, {4, "at 4"}, {5, "at x"}, {6, "at y"}}));
  EXPECT_EQ(next.num_voters, 2);
  EXPECT_EQ(next.next_id, 7);
  EXPECT_EQ(next.step, 120);
  EXPECT_EQ(announced(member.find(3, next)), (Names{"at 4", "at x", "at y"}));
  // A process that asks again has missed the answer.
  EXPECT_EQ(announced(member.welcome("at y", 121)), (Names{"at y"}));
  EXPECT_EQ(member.phase(), Agreement::Phase::kServing);
  // It does not know that this epoch is over either.
  EXPECT_FALSE(member.lose(4, 121).empty());
  EXPECT_EQ(told(member.welcome("at y", 121)), (Names{"at y"}));
}

TEST(Agreement, LetsNewMembersVoteLater) {
  Epoch epoch = epoch_of(1, {0, 1, 2, 3, 4, 5, 6});
  epoch.num_voters = 3;
  Agreement member(0, epoch, {});
  // All that have just joined die at once.
  for (const MemberId id : {3, 4, 5}) {
    EXPECT_TRUE(only<Look>(member.lose(id, 5)).empty());
  }
  EXPECT_TRUE(only<Look>(member.lose(6, 5)).empty());
  EXPECT_TRUE(member.hear(report_of(1, 1, 5), 5).empty());
  EXPECT_EQ(only<Propose>(member.hear(report_of(2, 1, 5), 5)).size(), 1);

  Agreement other(0, epoch, {});
  EXPECT_EQ(told(other.disturb(6)).size(), 6);
  Actions last;
  for (const MemberId id : {1, 2, 3, 4, 5, 6}) last = other.hear(report_of(id, 1, 6), 6);
  ASSERT_EQ(only<Propose>(last).size(), 1);
  EXPECT_EQ(only<Propose>(last).front().desired.num_voters, 7);
  EXPECT_TRUE(other.find(1, only<Propose>(last).front().desired).size() > 0);
}

TEST(Agreement, LeavesIfTooFewAreLeft) {
  const Epoch epoch = epoch_of(0, {0, 1, 2, 3});
  Agreement member(2, epoch, {});
  EXPECT_TRUE(only<Look>(member.lose(0, 5)).empty());
  EXPECT_TRUE(only<Look>(member.lose(1, 5)).empty());
  // The other one may know an epoch in which they are enough, and then the store.
  EXPECT_EQ(only<Look>(member.hear(report_of(3, 0, 5, {0, 1}), 5)).size(), 1);
  EXPECT_TRUE(member.learn(epoch).empty());
  const std::vector<Leave> ends = only<Leave>(member.find(0, epoch));
  ASSERT_EQ(ends.size(), 1);
  EXPECT_EQ(ends.front().why, Leave::Why::kTooFew);
  EXPECT_EQ(member.phase(), Agreement::Phase::kEnded);
  EXPECT_TRUE(member.lose(3, 5).empty());
  EXPECT_TRUE(member.learn(epoch_of(1, {2, 3})).empty());

  // The lowest may still wait for an answer to its proposal.
  Agreement higher(3, epoch, {});
  EXPECT_TRUE(only<Look>(higher.lose(0, 5)).empty());
  EXPECT_TRUE(only<Look>(higher.lose(1, 5)).empty());
  EXPECT_TRUE(only<Look>(higher.hear(report_of(2, 0, 5, {0, 1}), 5)).empty());

  Agreement small(3, epoch, Quorum{.least = 2});
  EXPECT_TRUE(only<Look>(small.lose(0, 5)).empty());
  EXPECT_TRUE(only<Look>(small.lose(1, 5)).empty());
  EXPECT_EQ(only<Look>(small.lose(2, 5)).size(), 1);
}

TEST(Agreement, GoesOnIfTheStoreKnowsBetter) {
  Agreement member(3, epoch_of(0, {0, 1, 2, 3}), {});
  EXPECT_TRUE(only<Look>(member.lose(0, 5)).empty());
  EXPECT_TRUE(only<Look>(member.lose(1, 5)).empty());
  EXPECT_EQ(only<Look>(member.lose(2, 5)).size(), 1);
  const Epoch next = epoch_of(1, {1, 2, 3}, 6);
  EXPECT_EQ(only<Adopt>(member.find(0, next)).size(), 1);
  EXPECT_EQ(member.phase(), Agreement::Phase::kServing);
  // An answer to the earlier question.
  EXPECT_TRUE(only<Look>(member.lose(1, 7)).empty());
  EXPECT_EQ(only<Look>(member.lose(2, 7)).size(), 1);
  EXPECT_TRUE(member.find(0, next).empty());
  EXPECT_EQ(only<Leave>(member.find(1, next)).size(), 1);
}

TEST(Agreement, ProposesAgainIfTheStoreHasNotChanged) {
  Agreement member(0, epoch_of(0, {0, 1, 2}), {});
  EXPECT_TRUE(only<Propose>(member.lose(2, 5)).empty());
  EXPECT_EQ(only<Propose>(member.hear(report_of(1, 0, 5, {2}), 5)).size(), 1);
  EXPECT_EQ(only<Propose>(member.find(0, epoch_of(0, {0, 1, 2}))).size(), 1);
  EXPECT_EQ(only<Leave>(member.give_up()).front().why, Leave::Why::kNoStore);
}

TEST(Agreement, LeavesOutWhoReachesFewestOthers) {
  // 3 reaches neither 4 nor 1.
  Agreement member(0, epoch_of(0, {0, 1, 2, 3, 4}), {});
  EXPECT_TRUE(only<Propose>(member.hear(report_of(3, 0, 1, {1, 4}), 1)).empty());
  EXPECT_TRUE(only<Propose>(member.hear(report_of(4, 0, 1, {3}), 1)).empty());
  EXPECT_TRUE(only<Propose>(member.hear(report_of(1, 0, 1, {3}), 1)).empty());
  const std::vector<Propose> proposals = only<Propose>(member.hear(report_of(2, 0, 1), 1));
  ASSERT_EQ(proposals.size(), 1);
  EXPECT_EQ(proposals.front().desired, epoch_of(1, {0, 1, 2, 4}, /*step=*/1));
}

TEST(Agreement, TellsTheEpochToWhoIsBehind) {
  Agreement member(0, epoch_of(5, {0, 2}), {});
  EXPECT_EQ(announced(member.hear(report_of(1, 4, 3), 9)), (Names{"at 1"}));
  EXPECT_EQ(member.phase(), Agreement::Phase::kServing);
  // It is behind itself: it asks, and remembers the report.
  EXPECT_EQ(told(member.hear(report_of(2, 6, 9), 9)).front(), "at 2");
  EXPECT_EQ(member.phase(), Agreement::Phase::kAgreeing);
  EXPECT_EQ(only<Propose>(member.learn(epoch_of(6, {0, 2}, 9))).size(), 1);
}

TEST(Agreement, LeavesIfThereAreTwoLines) {
  const auto why = [](const Epoch& epoch, bool has_stopped) {
    Agreement member(0, epoch_of(5, {0, 2, 3}), {});
    if (has_stopped) {
      EXPECT_FALSE(member.lose(3, 9).empty());
    }
    const std::vector<Leave> ends = only<Leave>(member.learn(epoch));
    return !ends.empty() && ends.front().why == Leave::Why::kForked;
  };
  EXPECT_FALSE(why(epoch_of(5, {0, 2, 3}), true));
  EXPECT_FALSE(why(epoch_of(4, {0, 1, 2}), true));
  EXPECT_TRUE(why(epoch_of(5, {0, 1}), true));
  EXPECT_FALSE(why(epoch_of(6, {0, 2}, 9), true));
  EXPECT_TRUE(why(epoch_of(6, {0, 2}, 8), true));
  EXPECT_TRUE(why(epoch_of(6, {0, 2}, 9), false));
  EXPECT_THROW(Agreement(1, epoch_of(5, {0, 2}), {}), std::logic_error);
}

TEST(Newcomer, AsksAMemberAndLooksAgain) {
  Newcomer newcomer("at x", /*first=*/1);
  EXPECT_EQ(only<Look>(newcomer.begin()).size(), 1);
  const Epoch epoch = epoch_of(0, {0, 1});
  EXPECT_EQ(only<Ask>(newcomer.find(epoch)).front().to, "at 1");
  EXPECT_TRUE(newcomer.lose("at 0").empty());
  EXPECT_EQ(only<Look>(newcomer.lose("at 1")).size(), 1);
  EXPECT_EQ(only<Leave>(newcomer.find(epoch)).size(), 1);
  // A member counts it already.
  EXPECT_EQ(only<Ask>(Newcomer::hear(report_of(2, 1, 3))).front().to, "at 2");
  EXPECT_TRUE(newcomer.learn(epoch).empty());
  Epoch next = epoch_of(1, {1, 2});
  next.members.push_back({3, "at x"});
  EXPECT_EQ(only<Adopt>(newcomer.learn(next)).size(), 1);
  EXPECT_EQ(only<Adopt>(newcomer.find(next)).size(), 1);
}

/// Three nodes of two ranks.
Epoch epoch_of_nodes() {
  Epoch epoch{.num_voters = 6, .next_id = 6};
  for (MemberId id = 0; id < 6; ++id) epoch.members.push_back({id, address_in_node(id)});
  return epoch;
}

Report report_in_node(MemberId from, std::int64_t step) {
  return {.from = {from, address_in_node(from)}, .epoch = 0, .step = step, .lost = {4}};
}

std::vector<MemberId> members_of(const Epoch& epoch) {
  std::vector<MemberId> ids;
  for (const Member& member : epoch.members) ids.push_back(member.id);
  return ids;
}

TEST(Cohorts, AreLostAsAWholeAndNobodyWaitsForTheRest) {
  Agreement agreement(0, epoch_of_nodes(), {});
  EXPECT_TRUE(only<Propose>(agreement.lose(4, 7)).empty());
  for (const MemberId other : {1, 2}) {
    EXPECT_TRUE(only<Propose>(agreement.hear(report_in_node(other, 7), 7)).empty());
  }
  const auto proposed = only<Propose>(agreement.hear(report_in_node(3, 8), 7));
  ASSERT_EQ(proposed.size(), 1U);
  EXPECT_EQ(members_of(proposed[0].desired), (std::vector<MemberId>{0, 1, 2, 3}));
}

TEST(Cohorts, AreLeftByAMemberThatHasLostItsMate) {
  Agreement agreement(5, epoch_of_nodes(), {});
  EXPECT_TRUE(only<Leave>(agreement.lose(0, 7)).empty());
  const auto left = only<Leave>(agreement.lose(4, 7));
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].why, Leave::Why::kBroken);
}

TEST(Cohorts, NeedMoreThanHalfOfTheRanks) {
  Epoch two = epoch_of_nodes();
  two.members.resize(4);
  two.num_voters = 4;
  Agreement agreement(0, two, {});
  const Actions actions = agreement.lose(3, 7);
  EXPECT_TRUE(only<Propose>(actions).empty());
  EXPECT_EQ(only<Look>(agreement.hear({.from = {1, address_in_node(1)}, .lost = {3}}, 7)).size(),
            1U);
}

TEST(Cohorts, JoinAsAWholeInTheOrderOfTheirPlaces) {
  Epoch alone = epoch_of_nodes();
  alone.members.resize(2);
  alone.num_voters = 2;
  Agreement agreement(0, alone, {});
  EXPECT_TRUE(agreement.welcome("a as 1/2 of new", 7).empty());
  EXPECT_FALSE(agreement.welcome("b as 0/2 of new", 7).empty());
  const auto proposed =
      only<Propose>(agreement.hear({.from = {1, address_in_node(1)}, .step = 7}, 7));
  ASSERT_EQ(proposed.size(), 1U);
  EXPECT_EQ(members_of(proposed[0].desired), (std::vector<MemberId>{0, 1, 6, 7}));
  EXPECT_EQ(proposed[0].desired.find(6)->address, "b as 0/2 of new");
  EXPECT_EQ(proposed[0].desired.num_voters, 2);
}

}  // namespace
}  // namespace gossamer::membership
