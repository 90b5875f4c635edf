#pragma once
// What one update of a bucket mixes in.

#include <span>

#include "optim/optimizer.hpp"

namespace gossamer {

/// x <- keep * x + sum of weight * inbox, then x <- rule(x, gradient) with the learning rate times
/// update_scale. The inboxes belong to a lane or to the algorithm and stay until the update's work
/// is done. Weights may be negative.
struct Intake {
  double keep = 1.0;
  std::span<const Inbox> inboxes = {};
  double update_scale = 1.0;
  /// The algorithm has scaled and clipped the gradients that it put into the bucket: the update
  /// takes them as they are.
  bool gradients_are_scaled = false;
};

}  // namespace gossamer
