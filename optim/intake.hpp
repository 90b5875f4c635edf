#pragma once
// An Intake says what one update of a block mixes in.

#include <vector>

#include "optim/exchange_work.hpp"
#include "optim/optimizer.hpp"

namespace gossamer {

/// x <- keep * x + sum of weight * inbox, then x <- rule(x, gradient) with the learning rate times
/// update_scale. `exchange` says what else the pass does, as decoding the inboxes. The blocks of
/// the inboxes belong to a lane or to the algorithm and must stay until the update's work is done.
/// Weights may be negative.
struct Intake {
  double keep = 1.0;
  std::vector<Inbox> inboxes = {};
  double update_scale = 1.0;
  ExchangeWork exchange = {};
  /// True: the algorithm has already scaled and clipped the gradients that it put into the bucket,
  /// so the update uses them as they are.
  bool gradients_are_scaled = false;
};

}  // namespace gossamer
