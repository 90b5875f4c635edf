// How the worker fails: all that it holds ends with the first error, and nobody waits for ever.

#include "test/base/thrown.hpp"
#include "test/comm/worker/scripted_operation.hpp"

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/worker/progress_worker.hpp"

namespace gossamer {
namespace {

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

TEST(ProgressWorkerFailure, FailsWhatWaitsToStartWhenAnotherOneThrows) {
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

TEST(ProgressWorkerFailure, FailsWhatWaitsToStartWhenPreparingAnotherOneThrows) {
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

TEST(ProgressWorkerFailure, StartsNothingAfterAnOperationOfAnotherWorkerThatFailed) {
  Script script;
  ProgressWorker worker({});
  const auto elsewhere = std::make_shared<RequestState>();
  Request request = worker.submit(scripted(script, 0), {.after = elsewhere});
  elsewhere->fail(std::make_exception_ptr(CommError({.rank = 1}, "lost on another wire")));
  EXPECT_EQ(failure_of(request), "rank 1: exchange: lost on another wire");
  EXPECT_TRUE(script.started.empty());
}

TEST(ProgressWorkerFailure, FailsWhatItStillHoldsWhenItStops) {
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
    EXPECT_CONTAINS(failure_of(request), "rank 4: communication: it has ended");
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

TEST(ProgressWorkerFailure, LetsCallersGoWhenItHangs) {
  std::latch release(1);
  ProgressWorker worker({.rank = 4, .timeout_s = 0.1, .margin_s = 0.1});
  Request request = worker.submit(std::make_unique<HangingOperation>(release),
                                  {.label = {.bucket = 2, .round = 7}});
  try {
    request.wait();
    ADD_FAILURE() << "no error";
  } catch (const CommError& error) {
    EXPECT_CONTAINS(error.what(),
                    "rank 4: exchange of bucket 2, round 7: the communication thread");
  }
  EXPECT_THROW(worker.drain(), CommError);
  release.count_down();
}

TEST(ProgressWorkerFailure, TimesOutWithADiagnosis) {
  Script script;
  std::vector<int> asked;
  ProgressWorker worker(
      {.rank = 4, .timeout_s = 0.05, .diagnose = [&](const auto& peers, const auto&) {
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
    EXPECT_CONTAINS(error.what(), "rank 4: sum of bucket 1, round 2 with rank 9");
    EXPECT_CONTAINS(error.what(), "asleep");
  }
  EXPECT_EQ(asked, std::vector<int>{6});
  EXPECT_THROW(other.wait(), CommError);
  EXPECT_THROW(worker.submit(scripted(script, 8), {}).wait(), CommError);
  EXPECT_THROW(worker.drain(), CommError);
}

/// What the worker logs until an operation of `rank` 1 with rank 0 has failed after a second. On a
/// busy machine the worker may sleep for some tenths of a second between the warning and the end.
std::string warnings_of(ProgressWorker::Config config) {
  Script script;
  config.rank = 1;
  config.timeout_s = 1.0;
  config.notice_s = 0.1;
  config.logger = Logger(LogLevel::kInfo, "rank 1");
  testing::internal::CaptureStderr();
  ProgressWorker worker(std::move(config));
  Request request = worker.submit(scripted(script, 0), {.label = {"exchange", 2, 7}});
  EXPECT_CONTAINS(failure_of(request), "no progress for 1 s");
  return testing::internal::GetCapturedStderr();
}

TEST(ProgressWorkerFailure, WarnsOnceBeforeItGivesUp) {
  const std::string said = warnings_of({});
  const std::string first =
      "rank 1: exchange of bucket 2, round 7 with rank 0: no progress for 0.1 s";
  ASSERT_TRUE(contains(said, first)) << said;
  EXPECT_EQ(said.find(first), said.rfind(first)) << said;
  EXPECT_CONTAINS(said, "the limit is 1 s (comm.timeout_s): perhaps a rank has left out");
}

TEST(ProgressWorkerFailure, WarnsWithWhatIsKnownOfThePeer) {
  const std::string said = warnings_of({.hint = [](const std::vector<int>& peers) {
    return concat("Rank ", peers.at(0), " sleeps");
  }});
  EXPECT_CONTAINS(said, "(comm.timeout_s): Rank 0 sleeps");
}

/// Rank 1 of three has begun more steps than rank 0.
std::shared_ptr<Attendance> one_behind() {
  const auto attendance = std::make_shared<Attendance>(3);
  attendance->tell_steps(1, 7);
  attendance->tell_steps(0, 5);
  return attendance;
}

TEST(ProgressWorkerFailure, WarnsEarlierOfARankThatIsBehind) {
  const std::string said = warnings_of({.patience_s = 0.05, .attendance = one_behind()});
  EXPECT_CONTAINS(said, "no progress for 0.05 s, ");
  EXPECT_CONTAINS(said, "rank 0 is 2 steps behind: it has begun 5, and rank 1 has begun 7. ");
}

TEST(ProgressWorkerFailure, AsksOnceForTheStepsOfOthers) {
  const auto attendance = std::make_shared<Attendance>(2);
  attendance->tell_steps(1, 7);
  int num_asked = 0;
  const std::string said =
      warnings_of({.patience_s = 0.05, .attendance = attendance, .ask = [&num_asked, attendance] {
                     ++num_asked;
                     attendance->tell_steps(0, 6);
                   }});
  EXPECT_EQ(num_asked, 1);
  EXPECT_CONTAINS(said, "rank 0 is 1 step behind");
}

TEST(ProgressWorkerFailure, EndsWithTheRankThatIsBehind) {
  Script script;
  ProgressWorker worker({.rank = 1, .timeout_s = 0.05, .attendance = one_behind()});
  Request request = worker.submit(scripted(script, 0), {});
  const std::string text = failure_of(request);
  EXPECT_CONTAINS(text, "no progress for 0.05 s (comm.timeout_s), 0 of its");
  EXPECT_CONTAINS(text, ": rank 0 is 2 steps behind");
}

TEST(ProgressWorkerFailure, EachWarningDoublesThePatience) {
  std::atomic<int> num_looks = 0;
  testing::internal::CaptureStderr();
  {
    ProgressWorker worker({.rank = 1,
                           .notice_s = 0.08,
                           .patience_s = 0.03,
                           .attendance = one_behind(),
                           .idle_s =
                               [&num_looks](const std::vector<int>&) {
                                 ++num_looks;
                                 return 100.0;
                               },
                           .logger = Logger(LogLevel::kInfo, "rank 1")});
    for (int turn = 0; turn < 3; ++turn) {
      Script script;
      Request request = worker.submit(scripted(script, 0), {});
      // The worker looks when the patience is over, and has warned when it looks again.
      const int last = num_looks;
      while (num_looks < last + 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      script.may_end = 1U;
      request.wait();
    }
  }
  const std::string said = testing::internal::GetCapturedStderr();
  for (const char* waited : {"for 0.03 s,", "for 0.06 s,", "for 0.08 s,"}) {
    EXPECT_CONTAINS(said, waited);
  }
}

TEST(ProgressWorkerFailure, WaitsOnForRanksThatAreAliveOnceTheTimeoutIsLifted) {
  Script script;
  std::atomic<int> num_asked = 0;
  std::atomic<bool> are_alive = true;
  ProgressWorker worker(
      {.timeout_s = 0.05, .diagnose = [&](const std::vector<int>& peers, const std::string&) {
         ++num_asked;
         return ProgressWorker::Diagnosis{peers, "late", are_alive};
       }});
  worker.lift_timeout();
  Request request = worker.submit(scripted(script, 6), {});
  // Each question is the end of one limit.
  while (num_asked < 3) std::this_thread::yield();
  EXPECT_FALSE(request.done());
  are_alive = false;
  EXPECT_THROW(request.wait(), CommError);
}

TEST(ProgressWorkerFailure, TimesOutWhenTheDeviceDoesNotEndItsWork) {
  const auto never = std::make_shared<ScriptedEvent>();
  const auto work = [never]() -> EventPtr { return never; };
  std::vector<OpContext> contexts(3, {.label = {.bucket = 1, .round = 3}});
  contexts[0].ready = never;
  contexts[1].prepare = work;
  contexts[2].finish = work;
  for (OpContext& context : contexts) {
    Script script;
    script.may_end = 1U;
    ProgressWorker worker({.rank = 4, .timeout_s = 0.05});
    Request request = worker.submit(scripted(script, 0), std::move(context));
    EXPECT_TRUE(
        failure_of(request).starts_with("rank 4: exchange of bucket 1, round 3: no progress for "
                                        "0.05 s (comm.timeout_s): the work on "
                                        "this rank's device"))
        << failure_of(request);
  }
}

TEST(ProgressWorkerFailure, GivesTheDeviceTimeWhileOtherOperationsEnd) {
  Script script;
  script.may_end = ~0U;
  // Above the time that one turn of the worker counts for, however long the turn was.
  ProgressWorker worker({.timeout_s = 0.6});
  const auto ready = std::make_shared<ScriptedEvent>();
  Request request = worker.submit(scripted(script, 0), {.ready = ready});
  for (int turn = 0; turn < 80; ++turn) {
    worker.submit(scripted(script, 1), {}).wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(request.done());
  ready->happen();
  request.wait();
}

/// Lets three times the timeout of the test below pass.
void let_time_pass() { std::this_thread::sleep_for(std::chrono::milliseconds(150)); }

TEST(ProgressWorkerFailure, GivesAnOperationTimeWhileItsBytesMove) {
  Script script;
  script.moves = 1U;
  ProgressWorker worker({.rank = 4, .timeout_s = 0.05});
  Request request = worker.submit(scripted(script, 0), {});
  let_time_pass();
  EXPECT_FALSE(request.done());
  script.moves = 0;
  const std::string text = failure_of(request);
  EXPECT_EQ(text, concat("rank 4: exchange with rank 0: no progress for 0.05 s (comm.timeout_s), ",
                         script.num_moved.load(),
                         " of its 1000000000 bytes have moved: it has not come to this point"));
}

TEST(ProgressWorkerFailure, GivesAnOperationTimeWhileItsConnectionsAreBusy) {
  Script script;
  std::atomic<double> idle_s = 0.0;
  std::vector<int> asked;
  ProgressWorker worker({.timeout_s = 0.05, .idle_s = [&](const std::vector<int>& peers) {
                           asked = peers;
                           return idle_s.load();
                         }});
  Request request = worker.submit(scripted(script, 6), {});
  let_time_pass();
  EXPECT_FALSE(request.done());
  idle_s = 0.06;
  EXPECT_THROW(request.wait(), CommError);
  EXPECT_EQ(asked, (std::vector{6, 7}));
}

TEST(ProgressWorkerFailure, TellsWhetherSuchAnOperationHasEverEnded) {
  for (const std::int64_t ended : {2, 3}) {
    Script script;
    script.may_end = 0b01;
    ProgressWorker worker({.timeout_s = 0.05});
    worker.submit(scripted(script, 0), {.label = {.bucket = ended, .round = 6}}).wait();
    Request request = worker.submit(scripted(script, 1), {.label = {.bucket = 2, .round = 7}});
    EXPECT_THROW(request.wait(), CommError);
    EXPECT_EQ(worker.has_stalled(), ended == 3);
  }
}

TEST(ProgressWorkerFailure, ForgetsADrainThatWasInterrupted) {
  Script script;
  script.messages = 0b01;
  std::atomic<bool> interrupts = true;
  ProgressWorker worker({.timeout_s = 0.05, .while_waiting = [&] {
                           if (interrupts) throw std::runtime_error("Ctrl-C");
                         }});
  Request message = worker.submit(scripted(script, 0), {.label = {.what = "message"}});
  expect_started(script, {0});
  script.moves = 0b01;
  EXPECT_THROW(worker.drain(), std::runtime_error);
  script.moves = 0;
  interrupts = false;
  let_time_pass();
  EXPECT_NO_THROW(worker.check());
}

TEST(ProgressWorkerFailure, TimesALetterOutOnlyWhileSomebodyWaitsForIt) {
  for (const bool drains : {false, true}) {
    Script script;
    script.messages = 0b01;
    ProgressWorker worker({.timeout_s = 0.05});
    Request message = worker.submit(scripted(script, 0), {.label = {.what = "message"}});
    expect_started(script, {0});
    let_time_pass();
    EXPECT_NO_THROW(worker.check());
    // A thread that the tagged message only wakes up does not wait for it.
    const auto pulse = std::make_shared<WorkerPulse>(0, 60.0);
    const auto other = std::make_shared<RequestState>(pulse, OpLabel{});
    std::thread later([&] {
      let_time_pass();
      other->complete();
    });
    RequestState::wait_for_any({other}, {message.state()});
    later.join();
    EXPECT_NO_THROW(worker.check());
    if (drains) {
      EXPECT_THROW(worker.drain(), CommError);
    } else {
      EXPECT_THROW(message.wait(), CommError);
    }
  }
}

TEST(ProgressWorkerFailure, FailsEverythingWithTheFirstError) {
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

TEST(ProgressWorkerFailure, KeepsOwnersOfWhatItHasGivenUp) {
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

TEST(ProgressWorkerFailure, FailsWhenItsServiceDoes) {
  Script script;
  std::atomic<bool> fail = false;
  ProgressWorker worker({.service = [&] {
    if (fail) throw std::runtime_error("service");
  }});
  Request request = worker.submit(scripted(script, 0), {});
  fail = true;
  EXPECT_THROW(request.wait(), std::runtime_error);
}

}  // namespace
}  // namespace gossamer
