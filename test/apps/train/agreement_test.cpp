// Work that all ranks do together, and which fails on one of them.

#include "apps/train/agreement.hpp"

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"

namespace gossamer::apps {
namespace {

/// What each rank's all_or_none() ends with: `text|code`, or the number it returned.
std::vector<std::string> run_jointly(int num_ranks, const std::function<int(int rank)>& work) {
  std::vector<std::string> ends(static_cast<std::size_t>(num_ranks));
  const LaunchOptions options{.num_ranks = num_ranks, .timeout_s = 60};
  EXPECT_EQ(launch("threads", options,
                   [&](Communicator& communicator, const World& world) {
                     std::string& end = ends[static_cast<std::size_t>(world.rank)];
                     try {
                       end = concat(all_or_none(communicator, [&] { return work(world.rank); }));
                     } catch (const JointFailure& failure) {
                       end = concat(failure.what(), "|", static_cast<int>(failure.code()));
                     }
                     return 0;
                   }),
            0);
  return ends;
}

TEST(Jointly, ReturnsEachRanksResult) {
  EXPECT_EQ(run_jointly(3, [](int rank) { return 10 * rank; }),
            (std::vector<std::string>{"0", "10", "20"}));
}

TEST(Jointly, BringsAFailureToAllRanks) {
  const auto fail_on = [](int failing) {
    return [failing](int rank) -> int {
      if (rank == failing) throw DataError("no file\nhere");
      return 0;
    };
  };
  EXPECT_EQ(run_jointly(3, fail_on(0)), std::vector<std::string>(3, "no file\nhere|3"));
  EXPECT_EQ(run_jointly(3, fail_on(2)), std::vector<std::string>(3, "on rank 2: no file\nhere|3"));
  EXPECT_EQ(run_jointly(1, fail_on(0)), std::vector<std::string>(1, "no file\nhere|3"));
}

TEST(Jointly, TakesTheFirstRanksFailureAndItsCode) {
  const auto ends = run_jointly(4, [](int rank) -> int {
    if (rank == 1) throw ConfigError("first");
    if (rank == 2) throw CheckpointError("second");
    if (rank == 3) throw std::runtime_error("");
    return 0;
  });
  EXPECT_EQ(ends, std::vector<std::string>(4, "on rank 1: first|2"));
  EXPECT_EQ(run_jointly(2, [](int) -> int { throw std::runtime_error(""); }),
            std::vector<std::string>(2, "|70"));
}

TEST(JointlySlow, MayTakeLongerOnOneRankThanTheTimeout) {
  const LaunchOptions options{.num_ranks = 3, .timeout_s = 0.5};
  EXPECT_EQ(launch("threads", options,
                   [](Communicator& communicator, const World& world) {
                     const int result = all_or_none_slow(communicator, [&world] {
                       if (world.rank == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
                       return 10 * world.rank;
                     });
                     EXPECT_EQ(result, 10 * world.rank);
                     return 0;
                   }),
            0);
}

TEST(JointlySlow, BringsAFailureToAllRanks) {
  const LaunchOptions options{.num_ranks = 3, .timeout_s = 60};
  EXPECT_EQ(launch("threads", options,
                   [](Communicator& communicator, const World& world) {
                     try {
                       all_or_none_slow(communicator, [&world] {
                         if (world.rank == 2) throw CheckpointError("the disk is full");
                         return true;
                       });
                       ADD_FAILURE() << "rank " << world.rank;
                     } catch (const JointFailure& failure) {
                       EXPECT_STREQ(failure.what(), "on rank 2: the disk is full");
                       EXPECT_EQ(exit_code_at_end(failure), ExitCode::kCheckpoint);
                     }
                     return 0;
                   }),
            0);
}

}  // namespace
}  // namespace gossamer::apps
