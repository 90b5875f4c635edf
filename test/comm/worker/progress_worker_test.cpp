// The worker with operations that do what the test says.

#include "comm/worker/progress_worker.hpp"

#include "test/comm/worker/scripted_operation.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

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

TEST(ProgressWorker, StartsTheNextOperationOfAChannelWhenTheOneBeforeLetsIt) {
  Script script;
  script.holds_next = 1U;
  ProgressWorker worker({});
  const int left = 0;
  const int right = 0;
  std::vector<Request> requests;
  requests.push_back(worker.submit(scripted(script, 0), {}, &left));
  requests.push_back(worker.submit(scripted(script, 1), {}, &left));
  requests.push_back(worker.submit(scripted(script, 2), {}, &right));
  requests.push_back(worker.submit(scripted(script, 3), {}));
  expect_started(script, {0, 2, 3});
  script.holds_next = 0U;
  expect_started(script, {0, 2, 3, 1});
  EXPECT_FALSE(requests[0].done());
  script.may_end = 15U;
  for (Request& request : requests) request.wait();
}

TEST(ProgressWorker, CountsTheProcessorTimeItUses) {
  Script script;
  ProgressWorker worker({});
  const Request request = worker.submit(scripted(script, 0), {});
  while (script.num_tests < 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const double first = worker.cpu_s();
  const int tests = script.num_tests;
  while (script.num_tests < tests + 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GT(first, 0.0);
  EXPECT_GT(worker.cpu_s(), first);
  script.may_end = 1U;
}

TEST(ProgressWorker, StartsTheNextOperationWhenOneThatHeldItUpIsOver) {
  Script script;
  script.holds_next = 1U;
  ProgressWorker worker({});
  const int channel = 0;
  Request first = worker.submit(scripted(script, 0), {}, &channel);
  Request second = worker.submit(scripted(script, 1), {}, &channel);
  expect_started(script, {0});
  script.may_end = 3U;
  first.wait();
  second.wait();
  expect_started(script, {0, 1});
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

TEST(ProgressWorker, TakesTheLongPauseOnlyWhenItHoldsNothing) {
  // Behind a long pause nothing below would end.
  Script script;
  script.may_end = 7U;
  ProgressWorker worker({.long_pause = std::chrono::hours(1)});
  const auto ready = std::make_shared<ScriptedEvent>();
  const auto prepared = std::make_shared<ScriptedEvent>();
  const auto finished = std::make_shared<ScriptedEvent>();
  const auto after = std::make_shared<RequestState>();
  const Request first =
      worker.submit(scripted(script, 0), {.ready = ready,
                                          .prepare = [prepared] { return prepared; },
                                          .finish = [finished] { return finished; }});
  const Request second = worker.submit(scripted(script, 1), {.after = after});
  expect_started(script, {});
  ready->happen();
  // The worker has seen it, and waits for the next one.
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  prepared->happen();
  expect_started(script, {0});
  EXPECT_FALSE(first.done());
  finished->happen();
  after->complete();
  expect_started(script, {0, 1});
}

TEST(ProgressWorker, SleepsUntilThePeerOfAnOperationTellsIt) {
  Script script;
  script.is_woken = 3U;
  const auto bell = std::make_shared<Doorbell>();
  ProgressWorker worker(
      {.short_pause = std::chrono::hours(1), .long_pause = std::chrono::hours(1), .bell = bell});
  Request first = worker.submit(scripted(script, 0), {});
  Request second = worker.submit(scripted(script, 1), {});
  expect_started(script, {0, 1});
  script.may_end = 1U;
  EXPECT_FALSE(first.done());
  bell->tell();
  first.wait();
  EXPECT_FALSE(second.done());
  script.may_end = 3U;
  bell->tell();
  second.wait();
  // Each of four rings, and the end of an operation, is a reason for one turn with two operations.
  EXPECT_LE(script.num_tests, 12);
}

TEST(ProgressWorker, AsksWhatNobodyTells) {
  // One operation wakes the worker and the other does not.
  Script script;
  script.is_woken = 1U;
  ProgressWorker worker({.long_pause = std::chrono::hours(1)});
  Request first = worker.submit(scripted(script, 0), {});
  Request second = worker.submit(scripted(script, 1), {});
  expect_started(script, {0, 1});
  script.may_end = 3U;
  second.wait();
  first.wait();
}

TEST(Doorbell, LosesNoNews) {
  // Behind a ring that is lost the sleep would take an hour.
  Doorbell bell;
  std::atomic<int> news = 0;
  constexpr int kAll = 20'000;
  std::thread peer([&bell, &news] {
    for (int i = 1; i <= kAll; ++i) {
      news.store(i, std::memory_order_release);
      bell.tell();
      if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  for (int seen = 0; seen < kAll;) {
    bell.expect();
    const int now = news.load(std::memory_order_acquire);
    if (now == seen) bell.sleep(std::chrono::hours(1));
    seen = now;
  }
  peer.join();
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

TEST(ProgressWorker, RecordsHowLongAnOperationIsQueuedAndHowLongItTakes) {
  Script script;
  script.holds_next = 0b01;
  const auto timeline = std::make_shared<Timeline>();
  timeline->begin_step(5);
  {
    ProgressWorker worker({});
    std::vector<Request> requests;
    for (const int number : {0, 1}) {
      requests.push_back(worker.submit(scripted(script, number),
                                       {.label = {.what = "exchange", .bucket = number, .round = 9},
                                        .trace = OpTrace(timeline, 100 + number)},
                                       &script));
    }
    expect_started(script, {0});
    // Nobody looks at this one, and paused time does not count.
    requests.push_back(worker.submit(scripted(script, 2), {}));
    timeline->pause();
    const OpTrace paused(timeline, 1);
    EXPECT_FALSE(paused.records());
    script.may_end = 0b111;
    for (Request& request : requests) request.wait();
  }
  const auto spans = timeline->spans();
  ASSERT_EQ(spans.size(), 4U);
  // Ends come in this order: 0 starts, 0 is over, 1 starts, 1 is over.
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i / 2);
    EXPECT_EQ(spans[i].label.what, i % 2 == 0 ? "queued" : "exchange");
    EXPECT_EQ(spans[i].label.bucket, number);
    EXPECT_EQ(spans[i].label.round, 9);
    EXPECT_EQ(spans[i].step, 5);
    EXPECT_EQ(spans[i].bytes, 100 + number);
    EXPECT_EQ(spans[i].num_peers, 1);
    EXPECT_EQ(spans[i].peers[0], number);
    EXPECT_EQ(spans[i].row, TimelineSpan::Row::kWire);
  }
  EXPECT_EQ(spans[0].end_ns, spans[1].start_ns);
  // The second one has waited until the first was over.
  EXPECT_LT(spans[2].start_ns, spans[1].end_ns);
  EXPECT_GE(spans[2].end_ns, spans[1].end_ns);
  EXPECT_EQ(spans[2].end_ns, spans[3].start_ns);
}

}  // namespace
}  // namespace gossamer
