#include "comm/elastic/record.hpp"

#include "test/base/thrown.hpp"

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/rendezvous/memory_store.hpp"

namespace gossamer::membership {
namespace {

using std::chrono::milliseconds;

class Record : public testing::Test {
 protected:
  [[nodiscard]] EpochRecord record(const std::string& secret = "secret") const {
    return {store_, "run", secret};
  }

  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  const Epoch first_ = {
      .members = {{0, "10.0.0.1:5 mark a"}, {1, "[::1]:6 mark b"}}, .num_voters = 2, .next_id = 2};
  const Epoch second_ = {.number = 1,
                         .members = {{1, "[::1]:6 mark b"}, {2, "c"}},
                         .num_voters = 1,
                         .step = 40,
                         .next_id = 3};
};

TEST_F(Record, HasTheLatestEpoch) {
  EXPECT_EQ(record().begin(first_), first_);
  EXPECT_EQ(record().begin(first_), first_);
  EXPECT_EQ(record().look(milliseconds(1)), first_);
  EXPECT_EQ(record().propose({first_, second_}), second_);
  EXPECT_EQ(record().look(milliseconds(1)), second_);
  // Tried again because the answer has not come.
  EXPECT_EQ(record().propose({first_, second_}), second_);
}

TEST_F(Record, TakesOneOfManySuccessors) {
  record().begin(first_);
  std::vector<Epoch> found(17);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < found.size(); ++i) {
      threads.emplace_back([&, i] {
        Epoch mine = second_;
        mine.step = static_cast<std::int64_t>(i);
        found[i] = record().propose({first_, mine});
      });
    }
  }
  EXPECT_EQ(std::set<Epoch>(found.begin(), found.end()).size(), 1);
}

TEST_F(Record, IsNotPutBackIntoAStoreThatHasForgotten) {
  record().begin(first_);
  store_ = std::make_shared<MemoryStore>();
  EXPECT_CONTAINS(what_of<CommError>([&] {
                    record().propose({first_, second_});
                  }),
                  "has lost the run's record");
}

TEST_F(Record, IsRefusedIfItsPartsDoNotFit) {
  const auto refuses = [this](const Epoch& epoch) {
    store_ = std::make_shared<MemoryStore>();
    return contains(what_of<CommError>([&] { record().begin(epoch); }), "the same version");
  };
  Epoch unsorted = first_;
  std::swap(unsorted.members[0], unsorted.members[1]);
  EXPECT_TRUE(refuses(unsorted));
  Epoch nobody = first_;
  nobody.members.clear();
  EXPECT_TRUE(refuses(nobody));
  Epoch lines = first_;
  lines.members[0].address = "two\nlines";
  EXPECT_TRUE(refuses(lines));
  Epoch voters = first_;
  voters.num_voters = 3;
  EXPECT_TRUE(refuses(voters));
  Epoch ids = first_;
  ids.next_id = 1;
  EXPECT_TRUE(refuses(ids));
}

TEST_F(Record, TellsASecretFromNone) {
  record().begin(first_);
  EXPECT_CONTAINS(what_of<CommError>([&] { record("").look(milliseconds(1)); }),
                  "is signed with a secret, and this rank uses none");
  EpochRecord(store_, "open", "").begin(first_);
  EXPECT_CONTAINS(
      what_of<CommError>([&] { EpochRecord(store_, "open", "secret").look(milliseconds(1)); }),
      "is signed without a secret, and this rank uses one");
}

TEST_F(Record, IsSigned) {
  record().begin(first_);
  EXPECT_CONTAINS(what_of<CommError>([&] { record("other").look(milliseconds(1)); }),
                  "not signed with this rank's secret");
  EXPECT_THROW(record("other").propose({first_, second_}), CommError);
  EXPECT_EQ(record().look(milliseconds(1)), first_);
  // The signature of another run's record.
  EpochRecord(store_, "other", "secret").begin(first_);
  store_->set("run/epoch", store_->get("other/epoch", milliseconds(1)));
  EXPECT_THROW(record().look(milliseconds(1)), CommError);
  store_->set("run/epoch", "x");
  EXPECT_THROW(record().look(milliseconds(1)), CommError);
}

TEST_F(Record, IsNoOlderThanTheCallers) {
  record().begin(first_);
  const std::string old = store_->get("run/epoch", milliseconds(1));
  record().propose({first_, second_});
  store_->set("run/epoch", old);
  Epoch third = second_;
  third.number = 2;
  EXPECT_CONTAINS(what_of<CommError>([&] {
                    record().propose({second_, third});
                  }),
                  "somebody has put an old record there");
}

}  // namespace
}  // namespace gossamer::membership
