#include "test/support/recursion/ranks.hpp"

namespace gossamer::recursion {

/// x <- x + (mean s - s); s are the parameters of the step that has begun the average.
Algorithm late_average(const Ranks& ranks) {
  const std::int64_t every =
      ranks.options.read(IntegerOption{.name = "every", .rule = {.fallback = 8}});
  const std::int64_t late =
      ranks.options.read(IntegerOption{.name = "late", .rule = {.fallback = 1}});
  const std::int64_t warmup =
      ranks.options.read(IntegerOption{.name = "warmup", .rule = {.fallback = 0}});
  return [=](Ranks& all, Step& step) {
    if (step.number < warmup) all.average(step.gradients);
    const std::int64_t began = step.number - late;
    if (began >= warmup && (began + 1) % every == 0) {
      const Vectors& snapshots = all.past[static_cast<std::size_t>(began)];
      const std::vector<double> mean = mean_of(snapshots);
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        for (std::size_t e = 0; e < mean.size(); ++e) {
          all.x[rank][e] += mean[e] - snapshots[rank][e];
        }
      }
    }
    all.update(step);
  };
}

}  // namespace gossamer::recursion
