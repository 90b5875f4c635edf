// Ranks of the backend `tcp` that fail, leave late, or are named. Ranks are threads; tests with
// processes are in comm/rank_failure.cpp.

#include "test/base/thrown.hpp"
#include "test/comm/tcp/tcp_ranks.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "comm/session.hpp"

namespace gossamer::tcp {
namespace {

using std::chrono::milliseconds;

LaunchOptions quiet(double timeout_s, bool reads_memory) {
  LaunchOptions options{.timeout_s = timeout_s, .log_level = LogLevel::kOff};
  options.meeting.reads_memory = reads_memory;
  return options;
}

/// The last rank needs longer than a rank that waits for one which has left is patient.
TEST(TcpFailure, IsNoLateEnd) {
  const auto body = [](Communicator& communicator, const World&) {
    if (communicator.rank() == 3) std::this_thread::sleep_for(milliseconds(6'000));
    return 0;
  };
  EXPECT_EQ(launch_ranks(4, quiet(60.0, true), body), std::vector<int>(4, 0));
}

/// When an exchange has failed, its blocks are the caller's again: nothing lands in them, and
/// nobody gets what is written into them.
TEST(TcpFailure, ReleasesTheBlocks) {
  for (const bool reads_memory : {true, false}) {
    const auto store = std::make_shared<MemoryStore>();
    constexpr std::int64_t kNumel = 1'000'000;
    const auto exchange = [](Communicator& communicator, std::vector<float>& mine,
                             std::vector<float>& theirs) {
      communicator
          .exchange(1 - communicator.rank(), block_of(std::span(mine)), block_of(std::span(theirs)),
                    {})
          .wait();
    };
    const auto body = [&](Communicator& communicator, const World& world) {
      std::vector<float> mine(kNumel, 1.0F);
      std::vector<float> theirs(kNumel, 2.0F);
      if (world.rank == 1) std::this_thread::sleep_for(milliseconds(3'000));
      EXPECT_THROW(exchange(communicator, mine, theirs), CommError);
      std::ranges::fill(mine, 3.0F);
      std::ranges::fill(theirs, 3.0F);
      std::this_thread::sleep_for(milliseconds(world.rank == 0 ? 1'500 : 300));
      EXPECT_EQ(std::ranges::count(theirs, 3.0F), kNumel) << world.rank;
      return 74;
    };
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        launch("tcp", rank_options(store, rank, 2, quiet(2.0, reads_memory)), body);
      });
    }
  }
}

/// A rank whose worker has failed while it computes is not taken for a stopped one.
TEST(TcpFailure, TellsTheReasonWhileTheRankComputes) {
  std::mutex mutex;
  std::vector<std::string> texts(3);
  const auto body = [&](Communicator& communicator, const World& world) {
    const auto rank = static_cast<std::size_t>(world.rank);
    std::vector<float> mine(3);
    std::vector<float> theirs(3);
    Request request;
    if (rank == 0) {
      request =
          communicator.exchange(1, block_of(std::span(mine)), block_of(std::span(theirs)), {});
    }
    std::this_thread::sleep_for(milliseconds(6'000));
    const std::lock_guard lock(mutex);
    texts[rank] = what_of<CommError>([&] { communicator.check(); });
    return 74;
  };
  launch_ranks(3, quiet(2.0, true), body);
  EXPECT_CONTAINS(texts[0], "exchange with rank 1: no progress for 2 s");
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_CONTAINS(texts[rank], "with rank 0: that rank has failed: ");
    EXPECT_CONTAINS(texts[rank], "exchange with rank 1: no progress for 2 s");
  }
}

/// Only rank 0 sums, so it tells how many bytes it would send and receive at first.
TEST(TcpFailure, GathersNoBlocksOfMiddleSizeFromManyRanks) {
  LaunchOptions options = quiet(2.0, false);
  // The ranks are on one host, and sum as if they were not.
  options.least_ring_bytes = std::int64_t{1} << 30U;
  for (const std::int64_t kib : {8, 64}) {
    std::string text;
    const auto body = [&](Communicator& communicator, const World& world) {
      if (world.rank > 0) {
        while (what_of<CommError>([&] { communicator.check(); }).empty()) {
          std::this_thread::sleep_for(milliseconds(20));
        }
        return 74;
      }
      std::vector<float> mine(static_cast<std::size_t>(kib * 256));
      std::vector<float> sum(mine.size());
      text = what_of<CommError>([&] {
        communicator.all_reduce_sum(block_of(std::span(mine)), block_of(std::span(sum)), {}).wait();
      });
      return 74;
    };
    launch_ranks(16, options, body);
    // 15 blocks come and one goes; of the larger ones 15 shards come and 8 go.
    const std::int64_t bytes = kib == 8 ? 16 * 8'192 : 23 * 4'096;
    EXPECT_CONTAINS(text, concat(" of its ", bytes, " bytes have moved"));
  }
}

/// Rank 1 never exchanges. What rank 0 exchanges with rank 2 meanwhile is no progress.
TEST(TcpFailure, CountsNoTrafficWithOtherRanksAsProgress) {
  std::string text;
  const auto body = [&](Communicator& communicator, const World& world) {
    std::vector<float> mine(3);
    std::vector<float> theirs(3);
    std::vector<float> never(3);
    const auto exchange = [&](int peer, std::vector<float>& place) {
      return communicator.exchange(peer, block_of(std::span(mine)), block_of(std::span(place)), {});
    };
    Request with_1;
    if (world.rank == 0) with_1 = exchange(1, never);
    const std::string failure = what_of<CommError>([&] {
      if (world.rank == 1) {
        while (true) {
          std::this_thread::sleep_for(milliseconds(10));
          communicator.check();
        }
      }
      while (true) exchange(2 - world.rank, theirs).wait();
    });
    if (world.rank == 0) text = failure;
    return 74;
  };
  launch_ranks(3, quiet(2.0, true), body);
  EXPECT_CONTAINS(text,
                  "exchange with rank 1: no progress for 2 s (comm.timeout_s), 0 of "
                  "its 24 bytes have moved");
}

/// The higher rank connects, so the lower one knows only that nobody has come.
TEST(TcpFailure, IsNoFirewallWhereTheHigherRankIsLate) {
  std::string text;
  const auto body = [&](Communicator& communicator, const World& world) {
    std::vector<float> mine(3);
    std::vector<float> theirs(3);
    if (world.rank != 0) {
      std::this_thread::sleep_for(milliseconds(4'500));
      return 74;
    }
    text = what_of<CommError>([&] {
      communicator.exchange(3, block_of(std::span(mine)), block_of(std::span(theirs)), {}).wait();
    });
    return 74;
  };
  launch_ranks(8, quiet(2.0, true), body);
  EXPECT_CONTAINS(text, "the named peers have not come to this point");
}

/// Rank 1 has left out a batch: it averages while rank 0 still waits for its exchange.
TEST(TcpFailure, TellsThatRanksWaitForEachOtherInTwoOperations) {
  for (const bool reads_memory : {false, true}) {
    std::vector<std::string> texts(2);
    const auto body = [&](Communicator& communicator, const World& world) {
      std::vector<float> mine(100'000);
      std::vector<float> theirs(100'000);
      texts.at(static_cast<std::size_t>(world.rank)) = what_of<CommError>([&] {
        if (world.rank == 0) {
          communicator.exchange(1, block_of(std::span(mine)), block_of(std::span(theirs)), {})
              .wait();
        } else {
          communicator.all_reduce_sum(block_of(std::span(mine)), block_of(std::span(theirs)), {})
              .wait();
        }
      });
      return 74;
    };
    launch_ranks(2, quiet(0.5, reads_memory), body);
    const std::string all = texts[0] + texts[1];
    EXPECT_TRUE(contains(all, "waits for this rank in a") && contains(all, "left out a batch"))
        << all;
  }
}

TEST(TcpMeeting, RefusesWhatCannotBe) {
  const auto refusal = [](LaunchOptions options) {
    options.meeting.store = std::make_shared<MemoryStore>();
    return what_of<ConfigError>([&] { open_sessions("tcp", options); });
  };
  LaunchOptions options = quiet(1.0, true);
  options.meeting.size = 2;
  options.meeting.rank = 2;
  EXPECT_CONTAINS(refusal(options), "rank 2 of 2 ranks, allowed: 0 to 1");
  options.meeting.rank = 0;
  options.meeting.num_streams = 65;
  EXPECT_CONTAINS(refusal(options), "allowed: auto, or 1 to 64");
  options.meeting.num_streams = 1;
  options.meeting.interface = "no-such-interface";
  EXPECT_CONTAINS(refusal(options), "no interface or address no-such-interface");
  options.meeting.size = 0;
  EXPECT_CONTAINS(refusal(options), "a world of 0 ranks");
}

TEST(TcpMeeting, NeedsASecretOutsideOfThisMachine) {
  LaunchOptions options = quiet(1.0, true);
  options.meeting.store = std::make_shared<MemoryStore>();
  options.meeting.size = 2;
  options.meeting.store_host = "192.0.2.1";
  const std::string text = what_of<ConfigError>([&] { open_sessions("tcp", options); });
  // A machine without a way to other networks says so.
  EXPECT_TRUE(contains(text, "need a secret") || contains(text, "no way leads")) << text;
}

}  // namespace
}  // namespace gossamer::tcp
