#pragma once
// The rule that updates the tracker of gradient tracking (core/algorithms/gradient_tracking.cpp):
// an estimate of the mean gradient. As a rule, it lets the sweep mix the tracker, and scale and
// clip the gradients, with the same code as for parameters.

#include <memory>

#include "optim/optimizer.hpp"

namespace gossamer {

/// y <- (y mixed) + g - g_old, then g_old <- g; y is the tracker, in the place of the parameter. A
/// missing gradient counts as g = 0. The one state is g_old, named `last_gradient`.
std::unique_ptr<Optimizer> make_tracker();

}  // namespace gossamer
