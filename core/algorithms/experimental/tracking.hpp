#pragma once
// The common part of gradient_tracking and momentum_tracking. Every rank keeps a momentum u of its
// own gradients, and an estimate y of the mean u of all ranks. The optimizer uses y instead of the
// gradient:
//
//   u' = beta u + g,   y' = W y + u' - u,   x' = W x - u(y')
//
// In every step the sum of y over all ranks equals the sum of u. Tracking sends twice as much as
// gossip.
//
// Gradients are scaled and clipped before they are tracked. A skipped step mixes y and adds
// nothing. A missing gradient counts as a gradient of zero, because other ranks may have one. All
// ranks forget arrived blocks at the same step, so the sum of the trackers stays as it was.

#include <string_view>

#include "core/algorithms/algorithm.hpp"

namespace gossamer {

struct TrackingOptions {
  /// 0: u is the gradient.
  double beta = 0.0;
  /// The name of u in saved state.
  std::string_view tracked;
};

AlgorithmFactory make_tracking(const TrackingOptions& options);

}  // namespace gossamer
