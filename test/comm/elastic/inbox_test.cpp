#include "comm/elastic/inbox.hpp"

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer::membership {
namespace {

/// A mesh in which the test says what happens.
class ToldMesh : public Mesh {
 public:
  using Texts = std::vector<std::pair<std::string, std::string>>;
  ToldMesh(Hooks& hooks, Texts& sent) : hooks_(hooks), sent_(sent) {}
  [[nodiscard]] const std::string& address() const override { return address_; }
  void start(Hooks hooks) override { hooks_ = std::move(hooks); }
  void watch(const std::string& /*address*/) override {}
  void send(const std::string& to, std::string text) override {
    sent_.emplace_back(to, std::move(text));
  }
  void drop(const std::string& /*address*/) override {}
  void close() override {}

 private:
  Hooks& hooks_;
  Texts& sent_;
  std::string address_ = "self as 0/2 of us";
};

class InboxTest : public testing::Test {
 protected:
  void ask(const std::string& from, std::int64_t epoch = 0, const std::string& trains = "lr: 1") {
    hooks_.heard(from, encode(AskToJoin{.epoch = epoch, .trains = trains}));
  }
  /// Asks over connections in both directions.
  void meet_and_ask(const std::string& from) {
    hooks_.met(from);
    ask(from);
  }
  /// The next event that is not the beginning of a connection.
  std::optional<Inbox::Event> poll() {
    auto event = inbox_.poll();
    while (event && event->has_met) event = inbox_.poll();
    return event;
  }

  Mesh::Hooks hooks_;
  ToldMesh::Texts sent_;
  std::promise<std::string> ended_;
  Inbox inbox_{std::make_unique<ToldMesh>(hooks_, sent_),
               {.holds = true, .trains = "lr: 1", .end_broken = [this](const std::string& why) {
                  ended_.set_value(why);
                }}};
};

TEST_F(InboxTest, LetsThoseWaitThatAskUntilItAdmitsThem) {
  meet_and_ask("a");
  EXPECT_FALSE(inbox_.is_disturbed());
  EXPECT_FALSE(poll().has_value());
  inbox_.admit(true);
  EXPECT_TRUE(inbox_.is_disturbed());
  EXPECT_EQ(poll()->from, "a");
  meet_and_ask("b");
  EXPECT_EQ(poll()->from, "b");
  inbox_.admit(false);
  meet_and_ask("c");
  EXPECT_FALSE(inbox_.is_disturbed());
}

/// A process that asks may not be reached itself.
TEST_F(InboxTest, LetsNobodyInWithoutConnectionsInBothDirections) {
  inbox_.admit(true);
  ask("a");
  EXPECT_FALSE(inbox_.is_disturbed());
  EXPECT_FALSE(poll().has_value());
  hooks_.met("a");
  EXPECT_TRUE(inbox_.is_disturbed());
  EXPECT_EQ(poll()->from, "a");
}

TEST_F(InboxTest, RefusesWhoTrainsSomethingElse) {
  inbox_.admit(true);
  ask("a", 0, "lr: 2");
  EXPECT_FALSE(inbox_.is_disturbed());
  ASSERT_EQ(sent_.size(), 1U);
  EXPECT_EQ(sent_[0].first, "a");
  EXPECT_EQ(std::get<Refuse>(*decode(sent_[0].second)).why,
            "the run has \"lr: 1\", and this process has \"lr: 2\"");
  hooks_.met("a");
  EXPECT_FALSE(inbox_.is_disturbed());
}

/// It is not connected with those that have come since.
TEST_F(InboxTest, TellsWhoAsksInAnEarlierEpochThePresentOne) {
  const Epoch later{.number = 3, .members = {{0, "self"}}, .num_voters = 1, .next_id = 1};
  meet_and_ask("waits");
  inbox_.set_epoch(later);
  inbox_.admit(true);
  meet_and_ask("late");
  EXPECT_FALSE(inbox_.is_disturbed());
  EXPECT_EQ(sent_, (ToldMesh::Texts{{"waits", encode(later)}, {"late", encode(later)}}));
}

TEST_F(InboxTest, LetsACohortInWhenAllOfItHaveAsked) {
  inbox_.admit(true);
  meet_and_ask("a as 0/2 of new");
  meet_and_ask("b as 0/2 of others");
  EXPECT_FALSE(inbox_.is_disturbed());
  ask("c as 1/2 of new");
  EXPECT_FALSE(inbox_.is_disturbed());
  hooks_.met("c as 1/2 of new");
  EXPECT_TRUE(inbox_.is_disturbed());
  EXPECT_EQ(poll()->from, "a as 0/2 of new");
  EXPECT_EQ(poll()->from, "c as 1/2 of new");
  EXPECT_FALSE(poll().has_value());
}

TEST_F(InboxTest, EndsAProcessThatHasLostAMate) {
  hooks_.lost("x as 1/2 of others", "it has ended");
  hooks_.lost("y as 1/2 of us", "it has ended");
  EXPECT_EQ(ended_.get_future().get(),
            "the rank at place 1 of this rank's node is lost: it has ended, and this rank has not "
            "ended by itself; restart the node as a whole");
}

TEST_F(InboxTest, EndsAProcessWhoseCohortTheOthersHaveLeft) {
  const Epoch now{.members = {{0, "self as 0/2 of us"}, {1, "y as 1/2 of us"}, {2, "x"}},
                  .num_voters = 3,
                  .next_id = 3};
  inbox_.set_epoch(now);
  hooks_.heard("x",
               encode(Epoch{.number = 1, .members = {{2, "x"}}, .num_voters = 1, .next_id = 3}));
  EXPECT_EQ(ended_.get_future().get(),
            "the other nodes have gone on without this rank's node, and this rank has not ended by "
            "itself; restart the node as a whole");
}

TEST_F(InboxTest, ForgetsWhoIsGoneBeforeItWasAdmitted) {
  meet_and_ask("a");
  meet_and_ask("b");
  hooks_.lost("a", "it has ended");
  inbox_.admit(true);
  // The end of a connection with somebody who is no member.
  EXPECT_TRUE(poll()->is_loss());
  EXPECT_EQ(poll()->from, "b");
  EXPECT_FALSE(poll().has_value());
}

}  // namespace
}  // namespace gossamer::membership
