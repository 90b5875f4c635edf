#include "test/support/recursion/ranks.hpp"

#include <utility>

namespace gossamer::recursion {

/// The update uses sums or means of the gradients over the ranks; those of the step before, if the
/// options say so.
Algorithm allreduce(const Ranks& ranks) {
  const bool averages =
      ranks.options.read(FlagOption{.name = "average", .rule = {.fallback = true}});
  const bool is_late =
      ranks.options.read(IntegerOption{.name = "delay", .rule = {.fallback = 0}}) > 0;
  Step late;
  late.gradients.assign(ranks.size(), Gradients(ranks.setup.parameters.size()));
  late.skips.assign(ranks.size(), false);
  return [=](Ranks& all, Step& step) mutable {
    all.average(step.gradients);
    if (!averages) {
      for (Gradients& parts : step.gradients) {
        for (std::vector<double>& part : parts) {
          for (double& g : part) g *= static_cast<double>(all.size());
        }
      }
    }
    if (is_late) std::swap(late, step);
    all.update(step);
  };
}

}  // namespace gossamer::recursion
