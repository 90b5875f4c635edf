#pragma once
// The rule that updates a tracker (core/algorithms/experimental/tracking.hpp): an estimate of the
// ranks' mean gradient or momentum. As a rule, it lets the sweep mix the tracker, and scale and
// clip the gradients, with the same code as for parameters.

#include <memory>

#include "optim/optimizer.hpp"

namespace gossamer {

/// y <- (y mixed) + u' - u with u' = beta u + g, then u <- u'; y is the tracker, which takes the
/// place of the parameter. A missing gradient counts as g = 0. The one state is u, named `tracked`;
/// with beta = 0 it is the last gradient.
std::unique_ptr<Optimizer> make_tracker(double beta);

}  // namespace gossamer
