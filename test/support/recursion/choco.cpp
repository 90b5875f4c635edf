#include "test/core/largest_elements.hpp"
#include "test/support/recursion/ranks.hpp"

#include <algorithm>

namespace gossamer::recursion {

/// h <- h + (the largest elements of x - h), x <- x + gamma (W h - h).
Algorithm choco(const Ranks& ranks) {
  const double fraction =
      ranks.options.read(NumberOption{.name = "fraction", .rule = {.fallback = 0.05}});
  const double gamma = ranks.options.read(
      NumberOption{.name = "consensus_step", .rule = {.fallback = std::min(2.0 * fraction, 0.5)}});
  Vectors h(ranks.size(), std::vector<double>(ranks.num_values()));
  return [=](Ranks& all, Step& step) mutable {
    for (std::size_t rank = 0; step.number > 0 && rank < all.size(); ++rank) {
      std::vector<double> q = all.x[rank];
      for (std::size_t e = 0; e < q.size(); ++e) q[e] -= h[rank][e];
      std::size_t begin = 0;
      for (const Parameter& parameter : all.setup.parameters) {
        const std::size_t end = begin + static_cast<std::size_t>(parameter.numel);
        keep_largest(q, begin, end, fraction);
        begin = end;
      }
      for (std::size_t e = 0; e < q.size(); ++e) h[rank][e] += q[e];
    }
    if (step.number > 0) {
      const Vectors after = all.mixed(step.number - 1, h);
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        for (std::size_t e = 0; e < h[rank].size(); ++e) {
          all.x[rank][e] += gamma * (after[rank][e] - h[rank][e]);
        }
      }
    }
    all.update(step);
  };
}

}  // namespace gossamer::recursion
