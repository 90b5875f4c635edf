#pragma once
// A rule that is not the engine's: an optimizer of the caller changes the parameters, such as one
// of a Python program. The engine mixes, calls the rule, and sends what the rule leaves. A rule
// sees one bucket after the other, or all buckets of a step at once.
//
// Thread safety: the pipeline calls the rule on the thread that calls the pipeline.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "optim/block_update.hpp"
#include "optim/gradient_control.hpp"
#include "optim/optimizer.hpp"

namespace gossamer {

/// The data that a rule gets for one bucket in one step.
struct ExternalStep {
  std::int64_t bucket = 0;
  /// The elements that the rule changes.
  Block parameters = {};
  /// One for each parameter of the bucket, in the order of the bucket's entries. Their gradients
  /// are final: sums over ranks stand in place of the rank's own where the algorithm sums.
  std::vector<Segment> segments = {};
  /// The schedule's rate, times update_scale.
  double lr = 0.0;
  /// The factor by which the rule must multiply learning rates, as the algorithm asks in directed
  /// topologies.
  double update_scale = 1.0;
  /// The factor for the gradients. If `apply` is 0, the rule must leave the parameters as they are.
  GradientDecision decision = {};
};

/// Changes the parameters of buckets in their blocks; in a bucket with master copies, these. Gets
/// one bucket, or all of them where the rule is one for whole steps. May throw: the step then ends
/// half way, and the pipeline cannot go on.
using ExternalOptimizer = std::function<void(std::span<const ExternalStep> steps)>;

/// An optimizer without a rule and without states: parameters are mixed, not updated.
std::unique_ptr<Optimizer> make_mixing_optimizer();

}  // namespace gossamer
