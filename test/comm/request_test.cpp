#include "comm/request.hpp"

#include "test/support/thread_stream.hpp"

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/host_stream.hpp"

namespace gossamer {
namespace {

using State = std::shared_ptr<RequestState>;

std::exception_ptr an_error() { return std::make_exception_ptr(std::runtime_error("lost")); }

TEST(Request, OfManyIsOverWhenAllAre) {
  const std::vector<State> states = {std::make_shared<RequestState>(),
                                     std::make_shared<RequestState>()};
  std::vector<Request> requests;
  requests.emplace_back();
  for (const State& state : states) requests.emplace_back(state);
  Request all = all_of(std::move(requests));
  EXPECT_FALSE(all.done());
  states[1]->complete();
  EXPECT_FALSE(all.done());
  states[0]->complete();
  EXPECT_TRUE(all.done());
  all.wait();
  EXPECT_FALSE(all.pending());
  EXPECT_FALSE(all_of({}).pending());
}

TEST(Request, TellsItsListenerOnce) {
  for (const bool fails : {false, true}) {
    for (const bool before : {false, true}) {
      const State state = std::make_shared<RequestState>();
      int num_calls = 0;
      bool failed = false;
      const auto end = [&] { fails ? state->fail(an_error()) : state->complete(); };
      if (before) end();
      state->when_over([&](const std::exception_ptr& error) {
        ++num_calls;
        failed = error != nullptr;
      });
      if (!before) end();
      EXPECT_EQ(num_calls, 1);
      EXPECT_EQ(failed, fails);
    }
  }
}

TEST(Request, FailsWhenTheWorkersSideIsDropped) {
  const auto pulse = std::make_shared<WorkerPulse>(3, 60.0);
  const auto state =
      std::make_shared<RequestState>(pulse, OpLabel{.what = "exchange", .bucket = 1, .round = 2});
  Request request(state);
  {
    Completion first(state);
    const Completion second = std::move(first);
    EXPECT_FALSE(request.done());
  }
  ASSERT_TRUE(request.done());
  try {
    request.wait();
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(),
                 "rank 3: exchange of bucket 1, round 2: it was dropped before its end");
  }
}

TEST(Request, EndsOnce) {
  const State state = std::make_shared<RequestState>();
  Request request(state);
  {
    Completion completion(state);
    completion.complete();
    EXPECT_TRUE(completion.ended());
  }
  request.wait();
}

TEST(Request, LetsAStreamWaitForEventsAndTheCallerForTheRest) {
  ThreadStream device;
  ThreadStream stream;
  std::promise<void> go;
  int value = 0;
  device.run([&] {
    go.get_future().wait();
    value = 7;
  });
  const auto worker = std::make_shared<RequestState>();
  std::vector<Request> requests;
  requests.emplace_back(worker);
  requests.emplace_back(std::make_shared<RequestState>(device.record(), [] {}));
  Request all = all_of(std::move(requests));
  std::thread thread([&worker] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    worker->complete();
  });
  // Returns although the device has not come to the event yet.
  all.wait_on(stream);
  EXPECT_FALSE(all.pending());
  EXPECT_TRUE(worker->done());
  int seen = 0;
  stream.run([&] { seen = value; });
  go.set_value();
  stream.synchronize();
  EXPECT_EQ(seen, 7);
  thread.join();
}

TEST(Request, TellsTheCallerOfAnErrorThatAStreamWouldWaitFor) {
  ThreadStream stream;
  const State failed = std::make_shared<RequestState>();
  failed->fail(an_error());
  EXPECT_THROW(Request(failed).wait_on(stream), std::runtime_error);
  const auto broken =
      std::make_shared<RequestState>(stream.record(), [] { throw std::runtime_error("broken"); });
  EXPECT_THROW(Request(broken).wait_on(stream), std::runtime_error);
  EXPECT_THROW(broken->when_over([](const std::exception_ptr&) {}), std::logic_error);
  stream.synchronize();
}

TEST(Request, KeepsAnOperationWhoseWaitIsInterrupted) {
  const auto pulse =
      std::make_shared<WorkerPulse>(0, 60.0, [] { throw std::logic_error("Ctrl-C"); });
  const auto state = std::make_shared<RequestState>(pulse, OpLabel{});
  ThreadStream stream;
  Request request(state);
  EXPECT_THROW(request.wait_on(stream), std::logic_error);
  EXPECT_TRUE(request.pending());
  state->complete();
  request.wait_on(stream);
  EXPECT_FALSE(request.pending());
}

TEST(Request, IsWaitedForWhereWorkIsDoneAtOnce) {
  const State state = std::make_shared<RequestState>();
  state->fail(an_error());
  InlineStream stream;
  Request request(state);
  EXPECT_THROW(request.wait_on(stream), std::runtime_error);
}

}  // namespace
}  // namespace gossamer
