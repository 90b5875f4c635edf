#include "comm/membership/inbox.hpp"

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace gossamer::membership {
namespace {

/// A mesh in which the test says what happens.
class ToldMesh : public Mesh {
 public:
  explicit ToldMesh(Hooks& hooks) : hooks_(hooks) {}
  [[nodiscard]] const std::string& address() const override { return address_; }
  void start(Hooks hooks) override { hooks_ = std::move(hooks); }
  void watch(const std::string& /*address*/) override {}
  void send(const std::string& /*to*/, std::string /*text*/) override {}
  void drop(const std::string& /*address*/) override {}
  void close() override {}

 private:
  Hooks& hooks_;
  std::string address_ = "self";
};

class InboxTest : public testing::Test {
 protected:
  void ask(const std::string& from) { hooks_.heard(from, encode(AskToJoin{})); }

  Mesh::Hooks hooks_;
  Inbox inbox_{std::make_unique<ToldMesh>(hooks_), {}, /*holds=*/true};
};

TEST_F(InboxTest, LetsThoseWaitThatAskUntilItAdmitsThem) {
  ask("a");
  EXPECT_FALSE(inbox_.is_disturbed());
  EXPECT_FALSE(inbox_.poll().has_value());
  inbox_.admit(true);
  EXPECT_TRUE(inbox_.is_disturbed());
  EXPECT_EQ(inbox_.poll()->from, "a");
  ask("b");
  EXPECT_EQ(inbox_.poll()->from, "b");
  inbox_.admit(false);
  ask("c");
  EXPECT_FALSE(inbox_.is_disturbed());
}

TEST_F(InboxTest, ForgetsWhoIsGoneBeforeItWasAdmitted) {
  ask("a");
  ask("b");
  hooks_.lost("a", "it has ended");
  inbox_.admit(true);
  // The end of a connection with somebody who is no member.
  EXPECT_FALSE(inbox_.poll()->message.has_value());
  EXPECT_EQ(inbox_.poll()->from, "b");
  EXPECT_FALSE(inbox_.poll().has_value());
}

}  // namespace
}  // namespace gossamer::membership
