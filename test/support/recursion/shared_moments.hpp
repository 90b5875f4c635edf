#pragma once
// Ranks take means of the moments of their optimizers, if the options of an algorithm say so.

#include "test/support/recursion/ranks.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>

namespace gossamer::recursion {

/// When the ranks meet, and with whom.
struct Meetings {
  /// The steps between two meetings. The periods of the moments count meetings.
  std::int64_t cycle = 1;
  /// By how many steps a value's first cycle is shorter.
  std::function<std::int64_t(std::size_t value)> turn_of = [](std::size_t) { return 0; };
  /// The moments meet in the rounds of the topology. Otherwise all ranks take the mean.
  bool in_rounds = false;
};

/// After `step` steps.
void share_moments(Ranks& ranks, int step, const Meetings& meetings);

}  // namespace gossamer::recursion
