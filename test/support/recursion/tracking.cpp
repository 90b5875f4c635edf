#include "test/support/recursion/ranks.hpp"

namespace gossamer::recursion {
namespace {

/// y <- W y, x <- W x, y <- y + u' - u with u' = beta u + g, where u is that of the last step that
/// counted. The update uses y as the gradient.
Algorithm tracking(const Ranks& ranks, double beta) {
  Vectors y(ranks.size(), std::vector<double>(ranks.num_values()));
  Vectors u = y;
  return [=](Ranks& all, Step& step) mutable {
    if (step.number > 0) {
      y = all.mixed(step.number - 1, y);
      all.mix(step.number - 1);
    }
    all.update(step, [&](std::size_t rank, Gradients& parts) {
      std::size_t begin = 0;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        parts[i].resize(static_cast<std::size_t>(all.setup.parameters[i].numel));
        for (std::size_t e = 0; e < parts[i].size(); ++e) {
          double& own = u[rank][begin + e];
          const double old = own;
          own = beta * own + parts[i][e];
          y[rank][begin + e] += own - old;
          parts[i][e] = y[rank][begin + e];
        }
        begin += parts[i].size();
      }
    });
  };
}

}  // namespace

Algorithm gradient_tracking(const Ranks& ranks) { return tracking(ranks, 0.0); }

Algorithm momentum_tracking(const Ranks& ranks) {
  return tracking(ranks,
                  ranks.options.read(NumberOption{.name = "beta", .rule = {.fallback = 0.9}}));
}

}  // namespace gossamer::recursion
