// Sessions whose owner starts the threads, as an interpreter does, and ranks that leave early.

#include "comm/session.hpp"

#include "test/base/thrown.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "comm/backends.hpp"

namespace gossamer {
namespace {

LaunchOptions no_log(int num_ranks) {
  return {.num_ranks = num_ranks, .timeout_s = 60.0, .log_level = LogLevel::kOff};
}

void exchange_with(Communicator& communicator, int peer) {
  std::vector<float> mine(3, 1.0F);
  std::vector<float> theirs(3);
  communicator.exchange(peer, block_of(std::span(mine)), block_of(std::span(theirs)), {}).wait();
}
void exchange_with_0(Communicator& communicator) { exchange_with(communicator, 0); }
void sum(Communicator& communicator) {
  std::vector<float> mine(3, 1.0F);
  std::vector<float> all(3);
  communicator.all_reduce_sum(block_of(std::span(mine)), block_of(std::span(all)), {}).wait();
  EXPECT_EQ(all.back(), static_cast<float>(communicator.size()));
}
void meet(Communicator& communicator) { communicator.barrier(); }
void gather(Communicator& communicator) { communicator.all_gather("x"); }
void split(Communicator& communicator) { communicator.split(0); }
void wait_for_counter_of_0(Communicator& communicator) {
  const Counter counter = 0;
  communicator.shared_memory()
      ->wait_signals({{.peer = 0, .counter = &counter, .least = 1}}, {})
      .wait();
}
void drain_a_letter_of_0(Communicator& communicator) {
  std::vector<float> message(3);
  communicator.receive(0, 0, block_of(std::span(message)), {}).wait();
}

/// Runs `use` on every session, each on a thread of its own.
void on_threads(const Sessions& sessions, const std::function<void(Session& session)>& use) {
  std::vector<std::jthread> threads;
  for (const auto& session : sessions) {
    threads.emplace_back([&use, &session] { use(*session); });
  }
}

TEST(Session, LendsACommunicatorToEveryThread) {
  for (int num_ranks = 1; num_ranks <= 5; ++num_ranks) {
    const Sessions sessions = open_sessions("threads", no_log(num_ranks));
    ASSERT_EQ(sessions.size(), static_cast<std::size_t>(num_ranks));
    std::atomic<int> sum_of_ranks = 0;
    on_threads(sessions, [&](Session& session) {
      EXPECT_EQ(session.world().size, num_ranks);
      EXPECT_EQ(session.communicator().rank(), session.world().rank);
      sum(session.communicator());
      sum_of_ranks += session.world().rank;
      session.close();
    });
    EXPECT_EQ(sum_of_ranks, num_ranks * (num_ranks - 1) / 2);
  }
}

TEST(Session, IsRefusedWhereTheWorldIsNotAsWanted) {
  EXPECT_CONTAINS(
      what_of<ConfigError>([] { open_sessions("threads", {.num_ranks = 4, .node_size = 3}); }),
      "3 does not divide the 4 ranks");
  EXPECT_THROW(open_sessions("carrier-pigeon", {}), ConfigError);
}

TEST(Session, TellsWhoWaitsForARankThatHasLeft) {
  for (const auto wait :
       {exchange_with_0, sum, meet, gather, split, wait_for_counter_of_0, drain_a_letter_of_0}) {
    const Sessions sessions = open_sessions("threads", no_log(2));
    on_threads(sessions, [&](Session& session) {
      if (session.world().rank == 0) return session.close();
      try {
        wait(session.communicator());
        ADD_FAILURE() << "no error";
      } catch (const CommError& error) {
        EXPECT_EQ(error.context().rank, 1);
        EXPECT_EQ(error.context().peers, std::vector<int>{0});
        EXPECT_EQ(exit_code_of(error), ExitCode::kPeerLost);
        EXPECT_CONTAINS(error.what(), "with rank 0: that rank has left the run");
      }
      EXPECT_TRUE(session.abort(ExitCode::kPeerLost, "as the test wants it"));
    });
  }
}

TEST(Session, LetsRanksLeaveOneAfterTheOther) {
  // The last two go on, and nobody waits for a rank that has left.
  const Sessions sessions = open_sessions("threads", no_log(4));
  on_threads(sessions, [](Session& session) {
    const std::unique_ptr<Communicator> pair =
        session.communicator().split(session.world().rank / 2);
    sum(session.communicator());
    if (session.world().rank >= 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      sum(*pair);
      exchange_with(*pair, 1 - pair->rank());
    }
    session.close();
  });
}

TEST(Session, WaitsForALetterThatHasBeenSentBeforeItsRankLeft) {
  const Sessions sessions = open_sessions("threads", no_log(2));
  on_threads(sessions, [](Session& session) {
    std::vector<float> message(3, 7.0F);
    if (session.world().rank == 0) {
      session.communicator().send(1, 0, block_of(std::span(message)), {});
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      std::vector<float> read(3);
      session.communicator().receive(0, 0, block_of(std::span(read)), {}).wait();
      EXPECT_EQ(read, message);
    }
    // The one who sends waits here until the tagged message has gone.
    session.close();
  });
}

TEST(Session, TellsTheCodeAndTheReasonOfAnAbort) {
  const Sessions sessions = open_sessions("threads", no_log(3));
  std::atomic<int> num_told = 0;
  on_threads(sessions, [&](Session& session) {
    if (session.world().rank == 1) {
      EXPECT_TRUE(session.abort(ExitCode::kNonFinite, "a loss"));
      return;
    }
    try {
      meet(session.communicator());
    } catch (const CommError& error) {
      EXPECT_EQ(exit_code_of(error), ExitCode::kNonFinite);
      EXPECT_CONTAINS(error.what(), "rank 1: that rank has failed: a loss");
      EXPECT_FALSE(session.abort(exit_code_of(error), error.what())) << "not the first";
      ++num_told;
    }
  });
  EXPECT_EQ(num_told, 2);
}

TEST(Session, ThatGoesWithoutAWordHasFailed) {
  Sessions sessions = open_sessions("threads", no_log(2));
  sessions.pop_back();
  const std::string error = what_of<CommError>([&] { meet(sessions[0]->communicator()); });
  EXPECT_CONTAINS(error, "rank 1: that rank has failed: its session has gone");
  EXPECT_FALSE(sessions[0]->abort(ExitCode::kPeerLost, error));
}

struct Interruption : std::exception {};

TEST(Session, LetsAWaitBeInterrupted) {
  // As by Ctrl-C: the wait ends, and the operation goes on.
  std::atomic<bool> is_over = false;
  LaunchOptions options = no_log(2);
  std::atomic<int> num_calls = 0;
  options.while_waiting = [&] {
    if (++num_calls >= 3 && !is_over) throw Interruption();
  };
  const Sessions sessions = open_sessions("threads", options);
  std::promise<void> interrupted;
  on_threads(sessions, [&](Session& session) {
    std::vector<float> mine(3, static_cast<float>(session.world().rank));
    std::vector<float> theirs(3, -1.0F);
    const auto exchange = [&] {
      return session.communicator().exchange(1 - session.world().rank, block_of(std::span(mine)),
                                             block_of(std::span(theirs)), {});
    };
    if (session.world().rank == 0) {
      Request request = exchange();
      EXPECT_THROW(request.wait(), Interruption);
      is_over = true;
      interrupted.set_value();
      request.wait();
      EXPECT_EQ(theirs, std::vector<float>(3, 1.0F));
    } else {
      interrupted.get_future().wait();
      exchange().wait();
    }
    session.close();
  });
}

TEST(Launch, EndsWithTheCodeOfARankThatWaitsForOneThatHasLeft) {
  const int code = launch("threads", no_log(3), [](Communicator& communicator, const World& world) {
    if (world.rank != 1) exchange_with(communicator, 1);
    return 0;
  });
  EXPECT_EQ(code, static_cast<int>(ExitCode::kPeerLost));
}

}  // namespace
}  // namespace gossamer
