#pragma once
// The work of an update's pass for an exchange, beside mixing in plain inboxes. A lane asks for it
// (Intake), and the pass must do all of it. GPUs do the work of `coding` and `stats` alone.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/types.hpp"
#include "optim/codec.hpp"
#include "optim/difference_stats.hpp"

namespace gossamer {

/// The memory belongs to a lane.
struct ExchangeWork {
  /// Encoded blocks: the blocks of the inboxes, and the block that the pass writes.
  Coding coding = {};
  /// The pass ends with copy <- x, for ranks that read the copy where it lies. Null data: no copy.
  Block copy = {};
  /// The inboxes hold plain values of one weight. The pass adds them up in their order, and then
  /// mixes in the sum as its one inbox.
  bool sums = false;
  /// Takes the differences between the block and its inboxes; null: differences are not measured.
  std::shared_ptr<DifferenceStats> stats = {};
  /// A function for inboxes whose elements are still arriving. It waits for more elements, and
  /// returns the number of first elements that have arrived; in the end it returns all. The pass
  /// must call it until then. Meanwhile the pass must not touch the elements that have not arrived,
  /// also in its own block. Null: all elements have arrived.
  std::function<std::int64_t()> wait_for_more = {};

  [[nodiscard]] bool is_empty() const {
    return coding.codec == nullptr && copy.data == nullptr && !sums && !stats;
  }
};

/// Takes what comes after the rule out of the work of a pass, and returns it.
inline ExchangeWork split_off_sending(ExchangeWork& work) {
  ExchangeWork sending{.coding = work.coding, .copy = std::exchange(work.copy, {})};
  sending.coding.decodes = false;
  work.coding.encodes = false;
  if (!sending.coding.encodes) sending.coding = {};
  if (!work.coding.decodes) work.coding = {};
  return sending;
}

}  // namespace gossamer
