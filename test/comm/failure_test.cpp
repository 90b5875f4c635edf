// A rank that fails, or never comes, leaves nobody waiting.

#include "test/base/few_threads.hpp"
#include "test/base/thrown.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"

namespace gossamer {
namespace {

LaunchOptions quiet(int num_ranks, double timeout_s = 60.0) {
  return {.num_ranks = num_ranks, .timeout_s = timeout_s, .log_level = LogLevel::kOff};
}

struct Failure {
  const char* name;
  std::function<void()> fail;
  ExitCode code;
  const char* text;
};

const std::array<Failure, 6> kFailures = {{
    {"Config", [] { throw ConfigError("wrong"); }, ExitCode::kConfig, "wrong"},
    {"Data", [] { throw DataError("torn"); }, ExitCode::kData, "torn"},
    {"Checkpoint", [] { throw CheckpointError("full"); }, ExitCode::kCheckpoint, "full"},
    {"Comm", [] { throw CommError({.rank = 1}, "gone"); }, ExitCode::kPeerLost,
     "rank 1: exchange: gone"},
    {"NonFinite", [] { throw NonFiniteError("nan"); }, ExitCode::kNonFinite, "nan"},
    {"Logic", [] { throw std::logic_error("bug"); }, ExitCode::kInternal, "bug"},
}};

/// Stays, and does not come to where the others wait for it.
void stay_away(Communicator& communicator) {
  for (;;) {
    communicator.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

/// What the other ranks are blocked in meanwhile.
using Waiting = void (*)(Communicator& communicator);

void wait_in_exchange(Communicator& communicator) {
  std::vector<float> mine(3);
  std::vector<float> theirs(3);
  communicator.exchange(0, block_of(std::span(mine)), block_of(std::span(theirs)), {}).wait();
}
void wait_in_sum(Communicator& communicator) {
  std::vector<float> mine(3);
  std::vector<float> sum(3);
  communicator.all_reduce_sum(block_of(std::span(mine)), block_of(std::span(sum)), {}).wait();
}
void wait_in_barrier(Communicator& communicator) { communicator.barrier(); }
void wait_for_counter(Communicator& communicator) {
  const Counter counter = 0;
  communicator.shared_memory()
      ->wait_signals({{.peer = 0, .counter = &counter, .least = 1}}, {})
      .wait();
}
void wait_in_sharing(Communicator& communicator) { communicator.shared_memory()->allocate(8); }
void wait_in_gather(Communicator& communicator) { communicator.all_gather("x"); }
void wait_in_split(Communicator& communicator) { communicator.split(0); }

TEST(ThreadsFailure, EndsTheRunWithTheExitCodeOfTheFirstFailure) {
  for (const Failure& failure : kFailures) {
    for (const Waiting wait : {wait_in_exchange, wait_in_sum, wait_in_barrier, wait_in_gather,
                               wait_in_split, wait_for_counter, wait_in_sharing}) {
      std::atomic<int> num_told = 0;
      const int code =
          launch("threads", quiet(4), [&](Communicator& communicator, const World& world) {
            if (world.rank == 0) failure.fail();
            try {
              wait(communicator);
            } catch (const CommError& error) {
              EXPECT_EQ(error.context().peers, std::vector<int>{0});
              EXPECT_EQ(exit_code_of(error), failure.code) << error.what();
              EXPECT_CONTAINS(error.what(), concat("that rank has failed: ", failure.text));
              ++num_told;
              throw;
            }
            return 0;
          });
      EXPECT_EQ(code, static_cast<int>(failure.code)) << failure.name;
      EXPECT_EQ(num_told, 3) << failure.name;
    }
  }
}

TEST(ThreadsFailure, TellsWhoUsesTheCommunicatorLater) {
  const int code = launch("threads", quiet(2), [](Communicator& communicator, const World& world) {
    if (world.rank == 0) throw DataError("torn");
    EXPECT_THROW(communicator.barrier(), CommError);
    EXPECT_THROW(communicator.barrier(), CommError);
    EXPECT_CONTAINS(what_of<CommError>([&] { communicator.check(); }), "failed: torn");
    return 0;
  });
  EXPECT_EQ(code, static_cast<int>(ExitCode::kData));
}

TEST(ThreadsFailure, ReturnsTheFirstCodeThatIsNotZero) {
  const int code = launch("threads", quiet(3), [](Communicator& communicator, const World& world) {
    communicator.barrier();
    return world.rank;
  });
  EXPECT_EQ(code, 1);
}

TEST(ThreadsWatchdog, NamesRankPeerBucketAndRound) {
  std::string message;
  const int code =
      launch("threads", quiet(3, 0.3), [&](Communicator& communicator, const World& world) {
        if (world.rank == 2) {
          // Waits for rank 1, which never comes.
          std::vector<float> mine(3);
          std::vector<float> theirs(3);
          try {
            communicator
                .exchange(1, block_of(std::span(mine)), block_of(std::span(theirs)),
                          {.label = {.bucket = 5, .round = 17}})
                .wait();
          } catch (const CommError& error) {
            message = error.what();
            EXPECT_EQ(error.context().rank, 2);
            EXPECT_EQ(error.context().peers, std::vector<int>{1});
            EXPECT_EQ(error.context().label.bucket, 5);
            EXPECT_EQ(error.context().label.round, 17);
            throw;
          }
        }
        stay_away(communicator);
        return 0;
      });
  EXPECT_EQ(code, static_cast<int>(ExitCode::kPeerLost));
  EXPECT_CONTAINS(message, "rank 2: exchange of bucket 5, round 17 with rank 1");
  EXPECT_CONTAINS(message, "comm.timeout_s");
}

TEST(ThreadsWatchdog, NamesTheMembersOfAGroupThatAreMissing) {
  launch("threads", quiet(4, 0.3), [](Communicator& communicator, const World& world) {
    if (world.rank % 2 == 1) stay_away(communicator);
    try {
      wait_in_sum(communicator);
    } catch (const CommError& error) {
      // Rank 0 and rank 2 have come; whoever is second to fail is told of the first.
      const std::vector<int> odd = {1, 3};
      const auto& peers = error.context().peers;
      EXPECT_TRUE(peers == odd || peers == std::vector<int>{2 - world.rank});
    }
    return 0;
  });
}

TEST(ThreadsFailure, RefusesPeersThatDoNotFit) {
  const int code = launch("threads", quiet(2), [](Communicator& communicator, const World& world) {
    std::vector<float> mine(static_cast<std::size_t>(3 + world.rank));
    std::vector<float> theirs(mine.size());
    communicator
        .exchange(1 - world.rank, block_of(std::span(mine)), block_of(std::span(theirs)), {})
        .wait();
    return 0;
  });
  EXPECT_EQ(code, static_cast<int>(ExitCode::kPeerLost));
}

TEST(ThreadsFailure, EndsARunForWhichTheSystemHasTooFewThreads) {
  constexpr int kNumRanks = 4;
  std::atomic<int> num_runs = 0;
  const auto body = [&](Communicator& communicator, const World& /*world*/) {
    ++num_runs;
    communicator.barrier();
    return 0;
  };
  const auto run = [&] { return launch("threads", quiet(kNumRanks), body); };
  // For the communication of some ranks or all, and for ranks.
  for (const int num_threads : {0, 2, kNumRanks, kNumRanks + 2}) {
    const FewThreads few(num_threads);
    const std::string error = what_of<std::runtime_error>(run);
    EXPECT_CONTAINS(error, "no more threads");
    EXPECT_EQ(num_runs, 0);
  }
}

TEST(Launch, RefusesImpossibleOptions) {
  const RankBody nothing = [](Communicator&, const World&) { return 0; };
  testing::internal::CaptureStderr();
  EXPECT_EQ(
      launch("threads", {.num_ranks = 4, .node_size = 3, .log_level = LogLevel::kOff}, nothing),
      static_cast<int>(ExitCode::kConfig));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_CONTAINS(said, "3 does not divide the 4 ranks");
  try {
    launch("carrier-pigeon", {}, nothing);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_CONTAINS(error.what(), "threads");
  }
}

/// What why_not_whole(2) says with these variables and no others of launchers.
std::string why_with(const std::vector<std::pair<const char*, const char*>>& variables) {
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  std::string why = why_not_whole(2);
  for (const auto& [name, value] : variables) unsetenv(name);
  return why;
}

TEST(Launcher, HasStartedMoreProcessesThanTheWorldHas) {
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_NAMESPACE", "RANK",
                                 "WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_PTY_PORT"}) {
    unsetenv(name);
  }
  using Variables = std::vector<std::pair<const char*, const char*>>;
  const Variables step = {{"SLURM_STEP_NUM_TASKS", "3"}};
  const auto in_step = [&](Variables more) {
    more.insert(more.end(), step.begin(), step.end());
    return why_with(more);
  };
  EXPECT_EQ(why_with({}), "");
  const std::string why = in_step({});
  EXPECT_TRUE(
      why.starts_with("SLURM_STEP_NUM_TASKS says that 3 processes were started, and this "
                      "world has 2: "))
      << why;
  EXPECT_CONTAINS(why, "srun --mpi=pmix");
  EXPECT_NE(in_step({{"PMIX_NAMESPACE", "slurm.pmix.2.0"}}), "");
  EXPECT_NE(why_with({{"PMI_SIZE", "3"}}), "");
  EXPECT_NE(why_with({{"OMPI_COMM_WORLD_SIZE", "3"}}), "");
  EXPECT_NE(why_with({{"RANK", "0"}, {"WORLD_SIZE", "3"}}), "");
  const std::string no_number = why_with({{"SLURM_STEP_NUM_TASKS", "abc"}});
  EXPECT_TRUE(no_number.starts_with("SLURM_STEP_NUM_TASKS is abc, ")) << no_number;
  // A world may be larger, and the launcher of the world may run in a step.
  EXPECT_EQ(why_with({{"SLURM_STEP_NUM_TASKS", "1"}}), "");
  EXPECT_EQ(in_step({{"OMPI_COMM_WORLD_SIZE", "2"}}), "");
  EXPECT_EQ(in_step({{"PMI_SIZE", "2"}}), "");
  EXPECT_EQ(in_step({{"PMIX_NAMESPACE", "prterun-a-7@1"}}), "");
  // A shell, and what somebody has set.
  EXPECT_EQ(in_step({{"SLURM_PTY_PORT", "4000"}}), "");
  EXPECT_EQ(why_with({{"SLURM_NTASKS", "3"}, {"WORLD_SIZE", "3"}}), "");
  EXPECT_EQ(why_with({{"RANK", "3"}}), "");
  EXPECT_EQ(why_with({{"PMI_SIZE", ""}}), "");
}

}  // namespace
}  // namespace gossamer
