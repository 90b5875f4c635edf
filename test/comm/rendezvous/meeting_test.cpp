// Ranks that meet in a store: who gets which rank, and whose records count.

#include "comm/rendezvous/meeting.hpp"

#include "test/base/thrown.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "comm/rendezvous/memory_store.hpp"
#include "comm/rendezvous/run_name.hpp"
#include "comm/session.hpp"

namespace gossamer {
namespace {

class Meeting : public testing::Test {
 protected:
  [[nodiscard]] MeetingOptions options(int size, int rank = -1) const {
    return {.store = store_, .size = size, .rank = rank, .secret = "secret", .timeout_s = 0.1};
  }
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
};

TEST_F(Meeting, DealsEveryRankOnce) {
  std::vector<int> ranks(17, -1);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] { ranks[i] = take_rank(options(17)); });
    }
  }
  std::ranges::sort(ranks);
  for (int rank = 0; rank < 17; ++rank) EXPECT_EQ(ranks[static_cast<std::size_t>(rank)], rank);
  EXPECT_CONTAINS(what_of<CommError>([&] { take_rank(options(17)); }), "17 ranks already");
}

TEST_F(Meeting, GivesARankToOneProcess) {
  EXPECT_EQ(take_rank(options(2, 1)), 1);
  EXPECT_CONTAINS(what_of<CommError>([&] { take_rank(options(2, 1)); }), "is rank 1 already");
  MeetingOptions other_run = options(2, 1);
  other_run.run = "other";
  EXPECT_EQ(take_rank(other_run), 1);
}

TEST_F(Meeting, ExchangesRecords) {
  const std::string binary("\0 \n\xff", 4);
  std::vector<std::vector<std::string>> found(3);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      MeetingOptions mine = options(3, rank);
      mine.timeout_s = 20.0;
      found[static_cast<std::size_t>(rank)] = exchange_records(mine, rank, concat(rank, binary));
    });
  }
  threads.clear();
  for (const auto& records : found) {
    EXPECT_EQ(records, (std::vector{"0" + binary, "1" + binary, "2" + binary}));
  }
}

TEST_F(Meeting, NamesWhoHasNotCome) {
  MeetingOptions mine = options(4, 1);
  store_->set("run/record/2", "whatever");
  const std::string text = what_of<CommError>([&] { exchange_records(mine, 1, "me"); });
  // The record of rank 2 counts first.
  EXPECT_CONTAINS(text, "rank 2");
  const auto other = std::make_shared<MemoryStore>();
  mine.store = other;
  const std::string missing = what_of<CommError>([&] { exchange_records(mine, 1, "me"); });
  EXPECT_CONTAINS(missing, "ranks 0, 2, 3");
  EXPECT_CONTAINS(missing, "within 0.1 s");
}

/// What somebody may put into the store who does not know the secret.
TEST_F(Meeting, BelievesSignedRecordsOnly) {
  MeetingOptions other = options(2, 1);
  exchange_records(options(1, 0), 0, "zero");
  const std::string of_rank_0 = store_->get("run/record/0", std::chrono::seconds(1));
  other.secret = "another secret";
  other.size = 1;
  const auto refused = [&](const std::string& record) {
    store_->set("run/record/1", record);
    return contains(what_of<CommError>([&] { exchange_records(options(2, 0), 0, "zero"); }),
                    "not signed with this rank's secret");
  };
  // A record of another rank, of another run, with another secret, changed, cut, or none at all.
  EXPECT_TRUE(refused(of_rank_0));
  MeetingOptions other_run = options(2, 1);
  other_run.run = "other";
  EXPECT_ANY_THROW(exchange_records(other_run, 1, "one"));
  EXPECT_TRUE(refused(store_->get("other/record/1", std::chrono::seconds(1))));
  other_run.run = "run";
  other_run.secret = "another secret";
  EXPECT_ANY_THROW(exchange_records(other_run, 1, "one"));
  EXPECT_TRUE(refused(store_->get("run/record/1", std::chrono::seconds(1))));
  other_run.secret = "secret";
  exchange_records(other_run, 1, "one");
  const std::string right = store_->get("run/record/1", std::chrono::seconds(1));
  EXPECT_FALSE(refused(right));
  EXPECT_TRUE(refused(right + "x"));
  EXPECT_TRUE(refused(right.substr(0, right.size() - 1)));
  EXPECT_TRUE(refused(right.substr(0, 10)));
  EXPECT_TRUE(refused("x"));
}

/// A store that counts the questions, and answers for several keys at once.
class CountingStore : public MemoryStore {
 public:
  void set(const std::string& key, std::string_view value) override {
    ++num_questions;
    MemoryStore::set(key, value);
  }
  std::string get(const std::string& key, std::chrono::milliseconds limit) override {
    ++num_questions;
    return MemoryStore::get(key, limit);
  }
  std::string compare_and_set(const std::string& key, std::string_view expected,
                              std::string_view desired) override {
    ++num_questions;
    return MemoryStore::compare_and_set(key, expected, desired);
  }
  bool wait_for_all(const Keys& keys, std::chrono::milliseconds limit) override {
    const QuestionsOfOne counts(num_questions);
    return MemoryStore::wait_for_all(keys, limit);
  }
  std::vector<std::string> get_all(const Keys& keys) override {
    const QuestionsOfOne counts(num_questions);
    return MemoryStore::get_all(keys);
  }
  std::int64_t draw_ticket(const std::string&) override {
    ++num_questions;
    return num_tickets++;
  }

  std::int64_t num_questions = 0;
  std::int64_t num_tickets = 0;

 private:
  /// What happens in its life counts as one question.
  class QuestionsOfOne {
   public:
    explicit QuestionsOfOne(std::int64_t& number) : number_(number), before_(number) {}
    QuestionsOfOne(const QuestionsOfOne&) = delete;
    QuestionsOfOne& operator=(const QuestionsOfOne&) = delete;
    ~QuestionsOfOne() { number_ = before_ + 1; }

   private:
    std::int64_t& number_;
    std::int64_t before_;
  };
};

TEST_F(Meeting, AsksTheStoreAsOftenForManyRanksAsForFew) {
  const auto store = std::make_shared<CountingStore>();
  MeetingOptions mine = options(200);
  mine.store = store;
  // All but one have come.
  for (int rank = 0; rank < 199; ++rank) EXPECT_EQ(take_rank(mine), rank);
  EXPECT_EQ(store->num_questions, 2 * 199);
  MeetingOptions alone = mine;
  alone.timeout_s = 0.0;
  for (int rank = 0; rank < 199; ++rank) {
    EXPECT_ANY_THROW(exchange_records(alone, rank, "record"));
  }
  store->num_questions = 0;
  const Met met = meet_in_store(mine, "record");
  EXPECT_EQ(met.rank, 199);
  EXPECT_EQ(met.records, std::vector<std::string>(200, "record"));
  // A ticket, the rank, the record, the wait for all, and all records.
  EXPECT_EQ(store->num_questions, 5);
}

TEST_F(Meeting, FindsWhoIsMissingWithFewQuestions) {
  const auto store = std::make_shared<CountingStore>();
  for (int rank = 0; rank < 1000; ++rank) {
    if (rank != 3 && rank != 700) store->set(concat("run/record/", rank), "here");
  }
  store->num_questions = 0;
  EXPECT_EQ(missing_keys(*store, {.prefix = "run/record/", .end = 1000}),
            (std::vector<int>{3, 700}));
  EXPECT_LE(store->num_questions, 45);
  // Of many it finds the first.
  store->num_questions = 0;
  const std::vector<int> first = missing_keys(*store, {.prefix = "other/", .end = 1000});
  EXPECT_EQ(first.front(), 0);
  EXPECT_LE(store->num_questions, 64);
}

/// A store whose server ends now and then, and is back without its memory.
class ForgettingStore : public MemoryStore {
 public:
  void set(const std::string& key, std::string_view value) override {
    end_now_and_then();
    MemoryStore::set(key, value);
  }
  std::string compare_and_set(const std::string& key, std::string_view expected,
                              std::string_view desired) override {
    end_now_and_then();
    return MemoryStore::compare_and_set(key, expected, desired);
  }

  int num_ends = 2;

 private:
  void end_now_and_then() {
    if (num_ends == 0) return;
    --num_ends;
    throw StoreError({.label = {.what = "start"}}, "Connection reset by peer");
  }
};

TEST_F(Meeting, BeginsAnewWhenTheStoreEnds) {
  const auto store = std::make_shared<ForgettingStore>();
  MeetingOptions mine = options(1);
  mine.store = store;
  mine.timeout_s = 20.0;
  EXPECT_EQ(meet_in_store(mine, "record").records, std::vector<std::string>{"record"});
  EXPECT_EQ(store->num_ends, 0);
  // The name of an attempt is not known in the next store.
  store->num_ends = 1;
  mine.has_attempts = true;
  EXPECT_CONTAINS(what_of<CommError>([&] { meet_in_store(mine, "record"); }), "reset by peer");
}

TEST_F(Meeting, NamesWhatAnEarlierRunHasLeft) {
  MeetingOptions mine = options(1);
  mine.clean_up = "remove the file /shared/gossamer-run";
  EXPECT_EQ(take_rank(mine), 0);
  for (const int rank : {-1, 0}) {
    mine.rank = rank;
    const std::string what = what_of<CommError>([&] { take_rank(mine); });
    EXPECT_CONTAINS(what,
                    "an earlier run of this name: give this run another --run-id, or "
                    "remove the file /shared/gossamer-run");
  }
}

/// The ranks of a run that a launcher starts again, with one store.
class Attempts : public Meeting {
 protected:
  [[nodiscard]] MeetingOptions attempt(int size, int rank) const {
    MeetingOptions mine = options(size, rank);
    mine.has_attempts = true;
    mine.timeout_s = 60.0;
    return mine;
  }
  /// The names that the ranks of an attempt find.
  std::vector<std::string> names(int size) const {
    std::vector<std::string> found(static_cast<std::size_t>(size));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        MeetingOptions mine = attempt(size, rank);
        name_attempt(mine);
        found[static_cast<std::size_t>(rank)] = mine.run;
      });
    }
    threads.clear();
    return found;
  }
};

TEST_F(Attempts, HaveNamesOfTheirOwn) {
  std::set<std::string> all;
  // The number of nodes changes, too.
  for (const int size : {3, 3, 2, 4, 1, 1, 4}) {
    const std::vector<std::string> found = names(size);
    EXPECT_EQ(found, std::vector<std::string>(static_cast<std::size_t>(size), found[0]));
    EXPECT_TRUE(found[0].starts_with("run-")) << found[0];
    EXPECT_TRUE(all.insert(found[0]).second) << "two attempts have the name " << found[0];
  }
}

/// A rank that comes long before the others finds what an earlier attempt has left.
TEST_F(Attempts, MeetWhoeverComesFirst) {
  names(3);
  for (int late = 0; late < 3; ++late) {
    std::vector<std::string> found(3);
    std::vector<std::jthread> threads;
    for (const int rank : {0, 1, 2}) {
      if (rank == late) continue;
      threads.emplace_back([&, rank] {
        MeetingOptions mine = attempt(3, rank);
        name_attempt(mine);
        found[static_cast<std::size_t>(rank)] = mine.run;
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    MeetingOptions mine = attempt(3, late);
    name_attempt(mine);
    threads.clear();
    found[static_cast<std::size_t>(late)] = mine.run;
    EXPECT_EQ(found, std::vector<std::string>(3, mine.run));
  }
}

TEST_F(Attempts, NameWhoHasNotCome) {
  names(3);
  MeetingOptions first = attempt(3, 0);
  first.timeout_s = 0.5;
  const std::string of_first = what_of<CommError>([&] { name_attempt(first); });
  EXPECT_CONTAINS(of_first, "ranks 1, 2");
  MeetingOptions other = attempt(3, 2);
  other.timeout_s = 0.5;
  const std::string of_other = what_of<CommError>([&] { name_attempt(other); });
  EXPECT_CONTAINS(of_other, "rank 0");
  EXPECT_CONTAINS(of_other, "within 0.5 s");
}

TEST_F(Attempts, NeedTheSecret) {
  std::string what;
  std::jthread other([&] {
    MeetingOptions mine = attempt(2, 1);
    mine.secret = "another secret";
    what = what_of<CommError>([&] { name_attempt(mine); });
  });
  MeetingOptions first = attempt(2, 0);
  const std::string of_first = what_of<CommError>([&] { name_attempt(first); });
  other.join();
  EXPECT_CONTAINS(of_first, "not signed with this rank's secret");
  EXPECT_CONTAINS(what, "not signed with this rank's secret");
}

/// A store that others can write may name any address as that of a rank.
TEST_F(Meeting, LeadsNoRankWithoutASecretToAnotherMachine) {
  LaunchOptions launch{.timeout_s = 60.0};
  launch.meeting = options(2, 0);
  launch.meeting.secret.clear();
  launch.meeting.timeout_s = 60.0;
  MeetingOptions other = launch.meeting;
  other.rank = 1;
  // An address of documents (RFC 5737).
  const std::jthread stranger([&] { exchange_records(other, 1, "host 192.0.2.1 29500 0 mark"); });
  const std::string what = what_of<ConfigError>([&] { open_sessions("tcp", launch); });
  EXPECT_CONTAINS(what, "anybody who reaches 192.0.2.1 could join the run");
}

}  // namespace
}  // namespace gossamer
