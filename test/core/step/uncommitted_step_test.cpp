#include "core/step/uncommitted_step.hpp"

#include "test/core/problem.hpp"

#include <array>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

/// What three ranks agree on, whose steps and holds are these.
std::array<UncommittedStep::Agreement, 3> agreements(const std::array<std::int64_t, 3>& steps,
                                                     const std::array<bool, 3>& holds,
                                                     int joining = -1) {
  std::array<UncommittedStep::Agreement, 3> all;
  run_ranks(3, [&](Communicator& communicator, const World& world) {
    const auto rank = static_cast<std::size_t>(world.rank);
    UncommittedStep held;
    if (holds[rank]) held.hold_gradients();
    all[rank] = held.agree(communicator, steps[rank], world.rank == joining);
  });
  return all;
}

TEST(UncommittedStep, IsMadeAgainByAllThatHoldIt) {
  for (const auto& agreement : agreements({6, 6, 6}, {true, true, false})) {
    EXPECT_EQ(agreement.num_steps, 6);
    EXPECT_EQ(agreement.num_holders, 2);
  }
}

TEST(UncommittedStep, IsNotMadeAgainWhereARankHasUpdated) {
  for (const auto& agreement : agreements({6, 7, 6}, {true, false, true})) {
    EXPECT_EQ(agreement.num_steps, 7);
    EXPECT_EQ(agreement.num_holders, 0);
  }
}

TEST(UncommittedStep, DoesNotCountARankThatJoins) {
  for (const auto& agreement : agreements({6, 0, 6}, {true, false, true}, 1)) {
    EXPECT_EQ(agreement.num_steps, 6);
    EXPECT_EQ(agreement.num_holders, 2);
  }
}

TEST(UncommittedStep, KeepsTheRateOfTheOthersUntilItsUpdateIsMade) {
  UncommittedStep held;
  held.hold_sums(0.25);
  held.release();
  EXPECT_FALSE(held.is_pending());
  EXPECT_EQ(held.lr(), 0.25);
  held.forget_lr();
  EXPECT_EQ(held.lr(), std::nullopt);
}

}  // namespace
}  // namespace gossamer
