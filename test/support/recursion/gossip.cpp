#include "test/support/recursion/ranks.hpp"
#include "test/support/recursion/shared_moments.hpp"

namespace gossamer::recursion {

/// x <- W x, then the update.
Algorithm gossip(const Ranks&) {
  return [](Ranks& ranks, Step& step) {
    if (step.number > 0) ranks.mix(step.number - 1);
    share_moments(ranks, step.number, {});
    ranks.update(step);
  };
}

}  // namespace gossamer::recursion
