// The worker with operations that do what the test says.

#include "comm/progress_worker.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer {
namespace {

/// Shared by a test and its operations.
struct Script {
  std::mutex mutex;
  std::vector<int> started;
  std::atomic<int> num_tests = 0;
  std::atomic<int> num_destroyed = 0;
  std::atomic<unsigned> may_end = 0;  // bit i: operation i
};

class ScriptedOperation : public Operation {
 public:
  ScriptedOperation(Script& script, int number) : script_(script), number_(number) {}
  ~ScriptedOperation() override { ++script_.num_destroyed; }
  void start() override {
    const std::lock_guard lock(script_.mutex);
    script_.started.push_back(number_);
  }
  bool test() override {
    ++script_.num_tests;
    return (script_.may_end.load() >> static_cast<unsigned>(number_) & 1U) != 0;
  }
  [[nodiscard]] std::vector<int> waiting_for() const override { return {number_}; }

 private:
  Script& script_;
  int number_;
};

class FailingOperation : public Operation {
 public:
  explicit FailingOperation(bool in_start) : in_start_(in_start) {}
  void start() override {
    if (in_start_) throw std::runtime_error("start");
  }
  bool test() override { throw std::runtime_error("test"); }
  [[nodiscard]] std::vector<int> waiting_for() const override { return {}; }

 private:
  bool in_start_;
};

std::unique_ptr<Operation> scripted(Script& script, int number) {
  return std::make_unique<ScriptedOperation>(script, number);
}

/// Never ends, and looks at what its owner keeps alive when it goes.
class LookingOperation : public Operation {
 public:
  LookingOperation(std::weak_ptr<void> owned, bool& was_alive)
      : owned_(std::move(owned)), was_alive_(was_alive) {}
  ~LookingOperation() override { was_alive_ = !owned_.expired(); }
  void start() override {}
  bool test() override { return false; }
  [[nodiscard]] std::vector<int> waiting_for() const override { return {}; }

 private:
  std::weak_ptr<void> owned_;
  bool& was_alive_;
};

TEST(ProgressWorker, KeepsOwnersUntilADroppedOperationIsGone) {
  // A peer may be reading the blocks until the operation has said that it goes.
  for (const bool time_to_start : {false, true}) {
    bool was_alive = false;
    {
      ProgressWorker worker({});
      auto owner = std::make_shared<int>();
      auto operation = std::make_unique<LookingOperation>(owner, was_alive);
      const Request request = worker.submit(std::move(operation), {.owner = std::move(owner)});
      if (time_to_start) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_TRUE(was_alive) << time_to_start;
  }
}

/// Waits until the operations `numbers` have started, in this order, and no other one.
void expect_started(Script& script, const std::vector<int>& numbers) {
  const auto started = [&script] {
    const std::lock_guard lock(script.mutex);
    return script.started;
  };
  for (int turn = 0; turn < 2'000 && started() != numbers; ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Whatever should not have started has had some turns to do so.
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(started(), numbers);
}

TEST(ProgressWorker, StartsAChainLinkByLink) {
  Script script;
  ProgressWorker worker({});
  std::vector<std::string> log;
  const auto note = [&log](const char* what) {
    return [&log, what]() -> EventPtr {
      log.emplace_back(what);
      return nullptr;
    };
  };
  Request first = worker.submit(scripted(script, 0), {});
  Request second =
      worker.submit(scripted(script, 1), {.after = first.state(), .prepare = note("1")});
  Request third =
      worker.submit(scripted(script, 2), {.after = second.state(), .prepare = note("2")});
  // Nobody need hold the first links.
  first = Request();
  second = Request();
  expect_started(script, {0});
  script.may_end |= 1U;
  expect_started(script, {0, 1});
  script.may_end |= 2U;
  expect_started(script, {0, 1, 2});
  script.may_end |= 4U;
  third.wait();
  EXPECT_EQ(log, (std::vector<std::string>{"1", "2"}));
}

TEST(ProgressWorker, LetsNothingOvertakeAChainInItsChannel) {
  Script script;
  ProgressWorker worker({});
  const int left = 0;
  const int right = 0;
  std::vector<Request> requests;
  requests.push_back(worker.submit(scripted(script, 0), {}, &left));
  requests.push_back(worker.submit(scripted(script, 1), {.after = requests[0].state()}, &right));
  requests.push_back(worker.submit(scripted(script, 2), {}, &right));
  requests.push_back(worker.submit(scripted(script, 3), {}, &left));
  requests.push_back(worker.submit(scripted(script, 4), {}));
  requests.push_back(worker.submit(scripted(script, 5), {.after = requests[2].state()}));
  // 2 waits behind 1, which waits for 0; the other channels go on.
  expect_started(script, {0, 3, 4});
  script.may_end |= 1U;
  expect_started(script, {0, 3, 4, 1, 2});
  script.may_end |= 4U;
  expect_started(script, {0, 3, 4, 1, 2, 5});
  script.may_end |= ~0U;
  for (Request& request : requests) request.wait();
}

TEST(ProgressWorker, FailsWhatComesAfterAFailure) {
  Script script;
  ProgressWorker worker({});
  Request first = worker.submit(std::make_unique<FailingOperation>(false), {});
  Request second = worker.submit(scripted(script, 0), {.after = first.state()});
  EXPECT_THROW(second.wait(), std::runtime_error);
  EXPECT_TRUE(script.started.empty());
  EXPECT_EQ(script.num_destroyed, 1);
}

/// What a request fails with. A request that does not end in five seconds counts as lost.
std::string failure_of(Request& request) {
  for (int turn = 0; turn < 5'000 && !request.done(); ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!request.done()) return "lost: nobody ends this request";
  try {
    request.wait();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no failure";
}

/// Fails when it starts, as an operation whose peer is gone.
class RefusedOperation : public Operation {
 public:
  void start() override { throw CommError({}, "the connection is gone"); }
  bool test() override { return false; }
  [[nodiscard]] std::vector<int> waiting_for() const override { return {5}; }
};

TEST(ProgressWorker, FailsWhatWaitsToStartWhenAnotherOneThrows) {
  Script script;
  ProgressWorker worker({.rank = 4});
  const int channel = 0;
  const auto never = std::make_shared<RequestState>();
  std::vector<Request> requests;
  // All of these stand in the queue: for another operation, behind one that waits, and prepared.
  requests.push_back(worker.submit(scripted(script, 0), {.after = never}, &channel));
  requests.push_back(worker.submit(scripted(script, 1), {}, &channel));
  requests.push_back(worker.submit(scripted(script, 2), {.after = never}));
  expect_started(script, {});
  requests.push_back(worker.submit(std::make_unique<RefusedOperation>(),
                                   {.label = {.what = "exchange", .bucket = 2, .round = 7}}));
  requests.push_back(worker.submit(scripted(script, 3), {.after = never}));
  for (Request& request : requests) {
    EXPECT_EQ(failure_of(request),
              "rank 4: exchange of bucket 2, round 7 with rank 5: the connection is gone");
  }
  EXPECT_TRUE(script.started.empty());
  EXPECT_EQ(script.num_destroyed, 4);
}

TEST(ProgressWorker, FailsWhatWaitsToStartWhenPreparingAnotherOneThrows) {
  Script script;
  ProgressWorker worker({.rank = 4});
  const auto never = std::make_shared<RequestState>();
  Request first = worker.submit(scripted(script, 0), {.after = never});
  Request second = worker.submit(
      scripted(script, 9), {.label = {.bucket = 1, .round = 3},
                            .prepare = []() -> EventPtr { throw DeviceError("out of memory"); }});
  for (Request* request : {&first, &second}) {
    EXPECT_EQ(failure_of(*request),
              "rank 4: exchange of bucket 1, round 3 with rank 9: out of memory");
  }
}

TEST(ProgressWorker, StartsNothingAfterAnOperationOfAnotherWorkerThatFailed) {
  Script script;
  ProgressWorker worker({});
  const auto elsewhere = std::make_shared<RequestState>();
  Request request = worker.submit(scripted(script, 0), {.after = elsewhere});
  elsewhere->fail(std::make_exception_ptr(CommError({.rank = 1}, "lost on another wire")));
  EXPECT_EQ(failure_of(request), "rank 1: exchange: lost on another wire");
  EXPECT_TRUE(script.started.empty());
}

TEST(ProgressWorker, FailsWhatItStillHoldsWhenItStops) {
  Script script;
  const auto never = std::make_shared<RequestState>();
  std::vector<Request> requests;
  {
    ProgressWorker worker({.rank = 4});
    requests.push_back(worker.submit(scripted(script, 0), {}));
    expect_started(script, {0});
    requests.push_back(worker.submit(scripted(script, 1), {.after = never}));
    worker.stop();
    requests.push_back(worker.submit(scripted(script, 2), {}));
  }
  for (Request& request : requests) {
    EXPECT_NE(failure_of(request).find("rank 4: communication: it has ended"), std::string::npos);
  }
  EXPECT_EQ(script.num_destroyed, 3);
}

/// Hangs in test() until it is let go.
class HangingOperation : public Operation {
 public:
  explicit HangingOperation(std::latch& release) : release_(release) {}
  void start() override {}
  bool test() override {
    release_.wait();
    return true;
  }
  [[nodiscard]] std::vector<int> waiting_for() const override { return {}; }

 private:
  std::latch& release_;
};

TEST(ProgressWorker, LetsCallersGoWhenItHangs) {
  std::latch release(1);
  ProgressWorker worker({.rank = 4, .timeout_s = 0.1, .margin_s = 0.1});
  Request request = worker.submit(std::make_unique<HangingOperation>(release),
                                  {.label = {.bucket = 2, .round = 7}});
  try {
    request.wait();
    ADD_FAILURE() << "no error";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("rank 4: exchange of bucket 2, round 7: the communication thread"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(worker.drain(), CommError);
  release.count_down();
}

TEST(ProgressWorker, DoesNotCountTheTimeOfThisRanksOwnComputing) {
  Script script;
  script.may_end = 1;
  ProgressWorker worker({.timeout_s = 0.1});
  const auto computing = std::make_shared<RequestState>();
  Request request = worker.submit(scripted(script, 0), {.after = computing});
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    computing->complete();
  });
  request.wait();
  other.join();
  EXPECT_EQ(script.started, std::vector<int>{0});
}

TEST(ProgressWorker, StartsInOrderAndEndsInAny) {
  Script script;
  ProgressWorker worker({});
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) requests.push_back(worker.submit(scripted(script, i), {}));
  for (const int i : {3, 0, 4, 2, 1}) {
    EXPECT_FALSE(requests[static_cast<std::size_t>(i)].done());
    script.may_end |= 1U << static_cast<unsigned>(i);
    requests[static_cast<std::size_t>(i)].wait();
  }
  EXPECT_EQ(script.started, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(script.num_destroyed, 5);
}

TEST(ProgressWorker, DropsTheOwnerBeforeItReportsTheEnd) {
  Script script;
  script.may_end = 1;
  ProgressWorker worker({});
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = owner;
  worker.submit(scripted(script, 0), {.owner = std::move(owner)}).wait();
  EXPECT_TRUE(watched.expired());
}

TEST(ProgressWorker, DrainsWhatNobodyWaitsFor) {
  Script script;
  ProgressWorker worker({});
  for (int i = 0; i < 3; ++i) worker.submit(scripted(script, i), {});
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    script.may_end = 7;
  });
  worker.drain();
  EXPECT_EQ(script.num_destroyed, 3);
  other.join();
}

TEST(ProgressWorker, TimesOutWithADiagnosis) {
  Script script;
  std::vector<int> asked;
  ProgressWorker worker({.rank = 4, .timeout_s = 0.05, .diagnose = [&](const auto& peers) {
                           asked = peers;
                           return ProgressWorker::Diagnosis{{9}, "asleep"};
                         }});
  Request request =
      worker.submit(scripted(script, 6), {.label = {.what = "sum", .bucket = 1, .round = 2}});
  Request other = worker.submit(scripted(script, 7), {});
  try {
    request.wait();
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_EQ(error.context().peers, std::vector<int>{9});
    EXPECT_NE(std::string(error.what()).find("rank 4: sum of bucket 1, round 2 with rank 9"),
              std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("asleep"), std::string::npos) << error.what();
  }
  EXPECT_EQ(asked, std::vector<int>{6});
  EXPECT_THROW(other.wait(), CommError);
  EXPECT_THROW(worker.submit(scripted(script, 8), {}).wait(), CommError);
  EXPECT_THROW(worker.drain(), CommError);
}

TEST(ProgressWorker, FailsEverythingWithTheFirstError) {
  for (const bool in_start : {true, false}) {
    Script script;
    ProgressWorker worker({});
    Request good = worker.submit(scripted(script, 0), {});
    Request bad = worker.submit(std::make_unique<FailingOperation>(in_start), {});
    EXPECT_THROW(bad.wait(), std::runtime_error);
    EXPECT_THROW(good.wait(), std::runtime_error);
    EXPECT_EQ(script.num_destroyed, 1);
    EXPECT_THROW(worker.submit(scripted(script, 1), {}).wait(), std::runtime_error);
  }
}

TEST(ProgressWorker, KeepsOwnersOfWhatItHasGivenUp) {
  // A network card may still write what it was told to receive.
  Script script;
  std::weak_ptr<int> watched;
  {
    ProgressWorker worker({});
    auto owner = std::make_shared<int>(1);
    watched = owner;
    Request request = worker.submit(scripted(script, 0), {.owner = std::move(owner)});
    expect_started(script, {0});
    EXPECT_THROW(worker.submit(std::make_unique<FailingOperation>(true), {}).wait(),
                 std::runtime_error);
    EXPECT_THROW(request.wait(), std::runtime_error);
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

TEST(ProgressWorker, FailsWhenItsServiceDoes) {
  Script script;
  std::atomic<bool> fail = false;
  ProgressWorker worker({.service = [&] {
    if (fail) throw std::runtime_error("service");
  }});
  Request request = worker.submit(scripted(script, 0), {});
  fail = true;
  EXPECT_THROW(request.wait(), std::runtime_error);
}

TEST(ProgressWorker, CallsItsServiceWhileIdle) {
  std::atomic<int> num_calls = 0;
  ProgressWorker worker({.service = [&] { ++num_calls; }});
  while (num_calls < 3) std::this_thread::yield();
}

TEST(ProgressWorker, SleepsBetweenTurnsInsteadOfSpinning) {
  Script script;
  ProgressWorker worker({});
  const auto begin = std::chrono::steady_clock::now();
  Request request = worker.submit(scripted(script, 0), {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::int64_t num_tests = script.num_tests;
  // One turn in 50 microseconds at the most, however long this thread has slept.
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - begin;
  EXPECT_LE(static_cast<double>(num_tests), elapsed.count() / 50.0 + 2.0);
  script.may_end = 1;
  request.wait();
}

TEST(ProgressWorker, DestroysWhatIsInFlightWhenItStops) {
  Script script;
  {
    ProgressWorker worker({});
    worker.submit(scripted(script, 0), {});
    worker.submit(scripted(script, 1), {});
  }
  EXPECT_EQ(script.num_destroyed, 2);
}

TEST(Request, IsOverWhenEmpty) {
  Request request;
  EXPECT_TRUE(request.done());
  EXPECT_FALSE(request.pending());
  request.wait();
}

TEST(Request, MoveEmptiesItsSource) {
  Script script;
  ProgressWorker worker({});
  Request first = worker.submit(scripted(script, 0), {});
  Request second = std::move(first);
  EXPECT_FALSE(first.pending());  // NOLINT(bugprone-use-after-move): that is what is tested
  EXPECT_TRUE(second.pending());
  script.may_end = 1;
  second.wait();
}

}  // namespace
}  // namespace gossamer
