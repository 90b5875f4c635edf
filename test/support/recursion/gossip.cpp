#include "test/support/recursion/ranks.hpp"
#include "test/support/recursion/shared_moments.hpp"

namespace gossamer::recursion {

/// x <- W x, then the update; without overlap in the other order.
Algorithm gossip(const Ranks& given) {
  if (!given.options.read(FlagOption{.name = "overlap", .rule = {.fallback = true}})) {
    return [](Ranks& ranks, Step& step) {
      ranks.update(step);
      ranks.mix(step.number);
      share_moments(ranks, step.number + 1, {});
    };
  }
  return [](Ranks& ranks, Step& step) {
    if (step.number > 0) ranks.mix(step.number - 1);
    share_moments(ranks, step.number, {});
    ranks.update(step);
  };
}

}  // namespace gossamer::recursion
