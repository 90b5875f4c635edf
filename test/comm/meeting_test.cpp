// Ranks that meet in a store: who gets which rank, and whose records count.

#include "comm/meeting.hpp"

#include "test/base/thrown.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/launch.hpp"
#include "comm/memory_store.hpp"
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
  EXPECT_TRUE(contains(what_of<CommError>([&] { take_rank(options(17)); }), "17 ranks already"));
}

TEST_F(Meeting, GivesARankToOneProcess) {
  EXPECT_EQ(take_rank(options(2, 1)), 1);
  EXPECT_TRUE(contains(what_of<CommError>([&] { take_rank(options(2, 1)); }), "is rank 1 already"));
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
  EXPECT_TRUE(contains(text, "rank 2")) << text;
  const auto other = std::make_shared<MemoryStore>();
  mine.store = other;
  const std::string missing = what_of<CommError>([&] { exchange_records(mine, 1, "me"); });
  EXPECT_TRUE(contains(missing, "ranks 0, 2, 3")) << missing;
  EXPECT_TRUE(contains(missing, "within 0.1 s")) << missing;
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
  EXPECT_TRUE(contains(what, "anybody who reaches 192.0.2.1 could join the run")) << what;
}

}  // namespace
}  // namespace gossamer
