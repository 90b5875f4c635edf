#include "apps/train/start_command.hpp"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace gossamer::apps {
namespace {

/// The command that continues a run of 3 ranks.
std::string command_of(const StartOptions& options, const Start& start,
                       const std::map<std::string, std::string>& variables = {}) {
  const auto environment = [&variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  return command_to_start("gossamer train --resume out", 3, options, start, environment);
}

TEST(CommandToStart, OfProcessesOfOneProgram) {
  EXPECT_EQ(command_of({.num_processes = 3}, {.is_rank = true, .parent = 7}),
            "gossamer train --resume out --processes 3");
}

TEST(CommandToStart, NamesWhereTheRanksMeet) {
  EXPECT_EQ(command_of({.rendezvous = "host1:29500", .world_size = 4}, {.is_rank = true}),
            "gossamer train --resume out --rendezvous host1:29500 --world-size 3, once for each of "
            "the 3 ranks");
}

TEST(CommandToStart, HasTheNameOfTheRunAndSaysThatRanksWereGiven) {
  EXPECT_EQ(
      command_of({.rendezvous = "file:/a b", .world_size = 3, .rank = 1, .run_id = "one"},
                 {.is_rank = true}),
      "gossamer train --resume out --rendezvous 'file:/a b' --world-size 3 --run-id one, once "
      "for each of the 3 ranks, with its --rank");
}

TEST(CommandToStart, KnowsTheVariablesInPlaceOfOptions) {
  EXPECT_EQ(
      command_of({}, {.is_rank = true},
                 {{"GOSSAMER_RENDEZVOUS", "h:1"}, {"GOSSAMER_RUN_ID", "two"}}),
      "gossamer train --resume out --rendezvous h:1 --world-size 3 --run-id two, once for each "
      "of the 3 ranks");
}

TEST(CommandToStart, OfARankThatHasJoinedMeetsInTheSamePlace) {
  EXPECT_EQ(command_of({.join = "h:1"}, {.is_rank = true, .joins = true}),
            "gossamer train --resume out --rendezvous h:1 --world-size 3, once for each of the 3 "
            "ranks");
}

TEST(CommandToStart, OfTasksOfSlurm) {
  EXPECT_EQ(command_of({.rendezvous = "slurm"}, {.is_rank = true}),
            "srun -n 3 gossamer train --resume out --rendezvous slurm");
  EXPECT_EQ(command_of({}, {.is_rank = true}, {{"SLURM_STEP_ID", "0"}}),
            "srun -n 3 gossamer train --resume out");
}

TEST(CommandToStart, OfAnotherLauncher) {
  EXPECT_EQ(command_of({}, {.is_rank = true}, {{"TORCHELASTIC_RUN_ID", "x"}}),
            "gossamer train --resume out, by the launcher as before, with 3 ranks");
}

}  // namespace
}  // namespace gossamer::apps
