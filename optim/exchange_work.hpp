#pragma once
// What the pass of an update does for an exchange, beside mixing in plain inboxes. A lane says it
// (Intake), and the pass must do all of it. On processors only.

#include <memory>

#include "base/types.hpp"
#include "optim/codec.hpp"

namespace gossamer {

/// The memory belongs to a lane.
struct ExchangeWork {
  /// Encoded blocks: those of the inboxes, and the one that the pass writes.
  Coding coding = {};
  /// The pass ends with copy <- x, for ranks that read the copy where it lies. Null data: no copy.
  Block copy = {};
  /// The inboxes hold plain values of one weight. The pass adds them up in their order, and then
  /// mixes in the sum as its one inbox.
  bool sums = false;
  /// Takes the differences between the block and its inboxes; null: nobody asks.
  std::shared_ptr<DifferenceStats> stats = {};

  [[nodiscard]] bool is_empty() const {
    return coding.codec == nullptr && copy.data == nullptr && !sums && !stats;
  }
};

}  // namespace gossamer
