// Members of a run as threads, over a network that the test breaks.

#include "comm/elastic/participant.hpp"

#include "test/base/thrown.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "comm/elastic/local_mesh.hpp"
#include "comm/rendezvous/memory_store.hpp"

namespace gossamer::membership {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

std::string place_of(int member) { return "process " + std::to_string(member); }

/// What reconfigure() has led to: an epoch, or the error with which the member leaves.
struct Reconfigured {
  Epoch epoch = {};
  ExitCode code = ExitCode::kDone;
  std::string why = {};
};

/// A network that stops processes.
class StoppingNetwork : public LocalNetwork {
 public:
  /// The process does nothing for a while, so the others lose it.
  void stop(const std::string& address) {
    stopped_ = address;
    for (const std::string& other : others_of(address)) cut(address, other);
  }
  /// It goes on, and learns that it has lost all others.
  void go_on(const std::string& address) {
    stopped_.clear();
    for (const std::string& other : others_of(address)) tell_lost(address, other);
  }

 protected:
  void tell_lost(const std::string& who, const std::string& lost) override {
    if (who != stopped_) LocalNetwork::tell_lost(who, lost);
  }

 private:
  std::string stopped_;
};

class Group {
 public:
  explicit Group(int size, std::chrono::milliseconds patience = kPatience) {
    Epoch first{.num_voters = size, .next_id = size};
    for (int id = 0; id < size; ++id) first.members.push_back({id, place_of(id)});
    for (int id = 0; id < size; ++id) {
      EpochRecord record(store, "run", "");
      members.push_back(std::make_unique<Participant>(make_local_mesh(network, place_of(id)),
                                                      record, id, record.begin(first),
                                                      Participant::Config{.patience = patience}));
    }
  }

  /// reconfigure() of these members at the same time; `first_step` plus the id are their steps.
  std::vector<Reconfigured> reconfigure(const std::vector<int>& ids, std::int64_t first_step = 10) {
    std::vector<Reconfigured> all(ids.size());
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          all[i].epoch =
              members[static_cast<std::size_t>(ids[i])]->reconfigure(first_step + ids[i]);
        } catch (const CommError& error) {
          all[i].code = exit_code_of(error);
          all[i].why = error.what();
          members[static_cast<std::size_t>(ids[i])]->close();
        }
      });
    }
    threads.clear();
    return all;
  }

  [[nodiscard]] Epoch in_store() { return EpochRecord(store, "run", "").look(kPatience); }

  std::shared_ptr<StoppingNetwork> network = std::make_shared<StoppingNetwork>();
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Participant>> members;
};

std::vector<MemberId> ids_of(const Epoch& epoch) {
  std::vector<MemberId> ids;
  for (const Member& member : epoch.members) ids.push_back(member.id);
  return ids;
}

TEST(Participant, GoesOnWithThreeOfFour) {
  Group run(4);
  for (const int other : {0, 1, 2}) run.network->cut(place_of(3), place_of(other));
  const std::vector<Reconfigured> all = run.reconfigure({0, 1, 2, 3});
  for (const std::size_t i : {0U, 1U, 2U}) {
    EXPECT_EQ(ids_of(all[i].epoch), (std::vector<MemberId>{0, 1, 2})) << all[i].why;
    EXPECT_EQ(all[i].epoch.step, 12);
  }
  EXPECT_NE(all[3].code, ExitCode::kDone);
  EXPECT_EQ(run.in_store(), all[0].epoch);
}

TEST(Participant, LeavesWhereTwoAndTwoAreApart) {
  Group run(4);
  for (const int a : {0, 1}) {
    for (const int b : {2, 3}) run.network->cut(place_of(a), place_of(b));
  }
  for (const Reconfigured& reconfigured : run.reconfigure({0, 1, 2, 3})) {
    EXPECT_EQ(reconfigured.code, ExitCode::kPeerLost);
    EXPECT_CONTAINS(reconfigured.why, "too few ranks are left");
  }
  EXPECT_EQ(run.in_store().number, 0);
}

/// Two reach everybody but each other. One of them has to go.
TEST(Participant, TakesOutOneOfTwoThatDoNotReachEachOther) {
  Group run(4);
  run.network->cut(place_of(1), place_of(2));
  const std::vector<Reconfigured> all = run.reconfigure({0, 1, 2, 3});
  for (const std::size_t i : {0U, 1U, 3U}) {
    EXPECT_EQ(ids_of(all[i].epoch), (std::vector<MemberId>{0, 1, 3})) << all[i].why;
  }
  EXPECT_EQ(all[2].code, ExitCode::kPreempted) << all[2].why;
}

TEST(Participant, IsFencedAfterALongStop) {
  Group run(3);
  run.network->stop(place_of(0));
  const std::vector<Reconfigured> others = run.reconfigure({1, 2});
  EXPECT_EQ(ids_of(others[0].epoch), (std::vector<MemberId>{1, 2})) << others[0].why;
  run.network->go_on(place_of(0));
  EXPECT_TRUE(run.members[0]->is_disturbed());
  const Reconfigured fenced = run.reconfigure({0})[0];
  EXPECT_EQ(fenced.code, ExitCode::kPreempted);
  EXPECT_CONTAINS(fenced.why, "have gone on without this one");
  EXPECT_FALSE(run.members[1]->is_disturbed()) << "the others have noticed nothing";
  EXPECT_FALSE(run.members[2]->is_disturbed());
}

TEST(Participant, GathersTextsInTheOrderOfRanks) {
  Group run(3);
  std::vector<std::vector<std::string>> texts(3);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < 3; ++i) {
      threads.emplace_back(
          [&, i] { texts[i] = run.members[i]->gather("text\n" + std::to_string(i)); });
    }
  }
  const std::vector<std::string> expected{"text\n0", "text\n1", "text\n2"};
  EXPECT_EQ(texts, std::vector<std::vector<std::string>>(3, expected));
  for (const auto& member : run.members) EXPECT_FALSE(member->is_disturbed());
}

TEST(Participant, GathersNothingWhenAMemberDies) {
  Group run(3);
  std::vector<std::string> texts(2);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < 2; ++i) {
      threads.emplace_back(
          [&, i] { texts[i] = what_of<PeerLost>([&] { run.members[i]->gather("here"); }); });
    }
    run.members[2]->close();
  }
  for (const std::string& text : texts) {
    EXPECT_CONTAINS(text, "have changed again");
  }
  for (const Reconfigured& reconfigured : run.reconfigure({0, 1})) {
    EXPECT_EQ(ids_of(reconfigured.epoch), (std::vector<MemberId>{0, 1})) << reconfigured.why;
  }
}

TEST(Participant, LosesOneThatCannotExchange) {
  Group run(4);
  // It has made more steps than the others.
  run.members[1]->lose(2, 50);
  const std::vector<Reconfigured> all = run.reconfigure({0, 1, 2, 3});
  EXPECT_EQ(ids_of(all[0].epoch), (std::vector<MemberId>{0, 1, 3})) << all[0].why;
  EXPECT_EQ(all[0].epoch.step, 50);
  EXPECT_NE(all[2].code, ExitCode::kDone);
}

TEST(Participant, GoesOnWithoutOneThatDoesNotCome) {
  for (const int late : {0, 2, 3}) {
    SCOPED_TRACE(late);
    Group run(4, std::chrono::milliseconds(2'000));
    std::vector<int> others{0, 1, 2, 3};
    std::erase(others, late);
    for (const Reconfigured& reconfigured : run.reconfigure(others)) {
      EXPECT_EQ(reconfigured.epoch.members.size(), 3U) << reconfigured.why;
      EXPECT_FALSE(reconfigured.epoch.has(late));
    }
    EXPECT_EQ(run.reconfigure({late})[0].code, ExitCode::kPreempted);
  }
}

TEST(Participant, LeavesWhenTheStoreHasForgotten) {
  Group run(3);
  run.members[2]->close();
  run.store->set("run/epoch", "");
  for (const Reconfigured& reconfigured : run.reconfigure({0, 1})) {
    EXPECT_EQ(reconfigured.code, ExitCode::kPeerLost);
    EXPECT_NE(reconfigured.why, "");
  }
}

/// A member that the process does not reach, or that does not reach the process.
TEST(Participant, StaysOutWhereAMemberIsNotConnectedWithIt) {
  Group run(3);
  run.network->cut("fresh", place_of(2));
  const std::string why = what_of<CommError>([&] {
    Participant::join(make_local_mesh(run.network, "fresh"), EpochRecord(run.store, "run", ""), 1,
                      {.patience = kPatience, .meeting = std::chrono::milliseconds(50)});
  });
  EXPECT_CONTAINS(why, "listens at fresh");
  EXPECT_CONTAINS(why, "member 2 at process 2: it does not answer");
  EXPECT_EQ(why.find("member 1"), std::string::npos) << why;
  for (const auto& member : run.members) EXPECT_FALSE(member->is_disturbed());
  EXPECT_EQ(run.in_store().number, 0);
}

/// The member that is dead is in the epoch until the others go on without it.
TEST(Participant, JoinsARunThatHasJustLostAMember) {
  Group run(4);
  run.members[3]->close();
  std::unique_ptr<Participant> fresh;
  std::jthread joining([&] {
    fresh = Participant::join(make_local_mesh(run.network, "fresh"),
                              EpochRecord(run.store, "run", ""), 1, {.patience = kPatience});
  });
  for (const Reconfigured& reconfigured : run.reconfigure({0, 1, 2})) {
    EXPECT_EQ(ids_of(reconfigured.epoch), (std::vector<MemberId>{0, 1, 2})) << reconfigured.why;
  }
  while (!run.members[1]->is_disturbed()) std::this_thread::yield();
  const std::vector<Reconfigured> all = run.reconfigure({0, 1, 2});
  joining.join();
  EXPECT_EQ(ids_of(all[0].epoch), (std::vector<MemberId>{0, 1, 2, 4})) << all[0].why;
  EXPECT_EQ(fresh->epoch(), all[0].epoch);
  EXPECT_EQ(fresh->self(), 4);
  EXPECT_EQ(fresh->rank(), 3);
  EXPECT_EQ(fresh->epoch().num_voters, 3);
}

TEST(Participant, IsRefusedWhereItTrainsSomethingElse) {
  Group run(2);
  const std::string why = what_of<CommError>([&] {
    Participant::join(make_local_mesh(run.network, "fresh"), EpochRecord(run.store, "run", ""), 0,
                      {.patience = kPatience, .trains = "comm.codec: int8"});
  });
  EXPECT_CONTAINS(why, "this process has \"comm.codec: int8\"");
  for (const auto& member : run.members) EXPECT_FALSE(member->is_disturbed());
}

TEST(Quorum, IsTheMajorityAndTheGivenNumber) {
  Epoch epoch{.num_voters = 6, .next_id = 6};
  for (MemberId id = 0; id < 6; ++id) epoch.members.push_back({id, place_of(static_cast<int>(id))});
  EXPECT_FALSE(Quorum{.least = 2}.is_met({0, 1}, epoch));
  EXPECT_FALSE(Quorum{.least = 2}.is_met({0, 1, 2}, epoch));
  EXPECT_TRUE(Quorum{.least = 2}.is_met({0, 1, 2, 3}, epoch));
  EXPECT_FALSE(Quorum{.least = 5}.is_met({0, 1, 2, 3}, epoch));
  EXPECT_TRUE(Quorum{.least = 5}.is_met({0, 1, 2, 3, 5}, epoch));
}

TEST(Message, IsReadAsItWasWritten) {
  const Report report{.from = {3, "127.0.0.1 7"},
                      .epoch = 2,
                      .step = 41,
                      .lost = {0, 5},
                      .newcomers = {"::1 80", "b 1"}};
  EXPECT_EQ(std::get<Report>(*decode(encode(report))), report);
  const Epoch epoch{
      .number = 4, .members = {{0, "a 1"}, {7, "b 2"}}, .num_voters = 1, .step = 9, .next_id = 8};
  EXPECT_EQ(std::get<Epoch>(*decode(encode(epoch))), epoch);
  const auto ask =
      std::get<AskToJoin>(*decode(encode(AskToJoin{.epoch = 7, .trains = "lr: 1\nseed: 2"})));
  EXPECT_EQ(ask.epoch, 7);
  EXPECT_EQ(ask.trains, "lr: 1\nseed: 2");
  EXPECT_EQ(std::get<Refuse>(*decode(encode(Refuse{"a\nb"}))).why, "a\nb");
  const auto entry = std::get<Entry>(*decode(encode(Entry{.epoch = 3, .text = "a\n\nb"})));
  EXPECT_EQ(entry.epoch, 3);
  EXPECT_EQ(entry.text, "a\n\nb");
}

TEST(Message, IsNothingElse) {
  const Epoch epoch{.members = {{0, "a"}}, .num_voters = 1, .next_id = 1};
  const std::string sound = encode(epoch);
  for (const std::string& text :
       {std::string(), std::string("report\n"), std::string("report\n1 2\na"),
        std::string("report\n1 2 3\n"), std::string("report\n1 2 3 x\na\n"),
        std::string("report\n-1 2 3\na\n"), std::string("entry\n"), std::string("entry\nx\n"),
        std::string("epoch\n"), std::string("epoch\n0 1 0 1\n0 \n"),
        std::string("epoch\n0 1 0 1\n1 a\n"), std::string("epoch\n0 2 0 1\n0 a\n"), sound + "0 b\n",
        std::string("join\n"), std::string("join\nx\n")}) {
    EXPECT_FALSE(decode(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace gossamer::membership
