#pragma once
// Whole runs that go on when ranks fail, and that others join. Ranks are threads; they only count
// steps, and make sure in each of them that all members of their world are there.

#include "test/comm/elastic_ranks.hpp"
#include "test/support/fault_injector.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "comm/rendezvous/memory_store.hpp"
#include "comm/session.hpp"

namespace gossamer::elastic_test {

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
  std::string backend = "tcp";
  int size = 3;
  std::int64_t min_ranks = 0;
  /// The step in which a rank dies, by its first rank: when the others exchange.
  std::map<int, std::int64_t> dies = {};
  /// Ranks that die when they have lost a peer for the first time.
  std::vector<int> dies_later = {};
  std::shared_ptr<FaultInjector> injector = {};
  double timeout_s = 30.0;
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

/// One step: a sum over all, and an exchange with a neighbour. Both know how many ranks there are,
/// and name the step as their round.
void make_step(Communicator& communicator, std::int64_t step);

/// One process that joins the run of a plan, from its start to its end.
Ended join(const Plan& plan);

/// How all ranks end, and after them those that have joined. Expects that no member makes a step
/// twice, and that all who begin an epoch know the same members and the same step.
std::vector<Ended> play(Plan plan);

/// All that do not die come to the end together.
void expect_survival(const Plan& plan, const std::vector<Ended>& ends);

}  // namespace gossamer::elastic_test
