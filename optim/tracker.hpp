#pragma once
// The estimate of the mean gradient that gradient tracking keeps
// (core/algorithms/gradient_tracking.cpp), as a rule: the sweep then mixes, scales and clips for it
// as for parameters.

#include <memory>

#include "optim/optimizer.hpp"

namespace gossamer {

/// y <- (y mixed) + g - g_old, g_old <- g. Where there is no gradient, g = 0. Its one state is
/// g_old.
std::unique_ptr<Optimizer> make_tracker();

}  // namespace gossamer
