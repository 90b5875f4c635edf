#pragma once
// One bucket at work: a contiguous block of parameters, their optimizer state, and which gradients
// of the current step have arrived.
//
// Protocol per step: offer() each gradient, then update() once; gradients are forgotten by it.
// Invariants: parameter memory is written by update() alone (and by whoever averages or loads,
// between steps). Not thread safe.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gossamer/core/base/buffer.hpp"
#include "gossamer/core/base/worker_pool.hpp"
#include "gossamer/core/engine/bucket_plan.hpp"
#include "gossamer/optim/optimizer.hpp"

namespace gossamer {

/// What an update takes beside the gradients.
struct UpdateContext {
  double lr = 0.0;
  double gradient_scale = 1.0;
  /// As in ParameterUpdate, for the whole block; they belong to the caller.
  double keep = 1.0;
  std::span<const Inbox> inboxes = {};
  SimdPath simd = best_simd_path();
  /// Shares the work; null: the caller does it alone.
  WorkerPool* pool = nullptr;
};

class Bucket {
 public:
  /// `parameters` is the memory that the model computes with.
  Bucket(std::int64_t index, BucketSpec spec, std::span<const ParameterInfo> parameters,
         Buffer memory, int num_states);

  [[nodiscard]] std::int64_t index() const { return index_; }
  [[nodiscard]] const BucketSpec& spec() const { return spec_; }
  [[nodiscard]] Block parameters() const { return memory_.block(); }
  /// Keeps the memory alive while an exchange reads it.
  [[nodiscard]] const std::shared_ptr<void>& owner() const { return memory_.owner(); }
  [[nodiscard]] std::int64_t num_entries() const {
    return static_cast<std::int64_t>(slots_.size());
  }

  [[nodiscard]] const std::string& name(std::int64_t entry) const { return slot(entry).name; }
  /// The gradient of an entry has arrived; it is read until update(). Throws std::logic_error when
  /// one is there already or has been used in this step.
  void offer(std::int64_t entry, ConstBlock gradient);
  [[nodiscard]] bool complete() const { return num_arrived_ == num_entries(); }
  [[nodiscard]] bool updated() const { return updated_; }
  /// Null data where no gradient has arrived.
  [[nodiscard]] ConstBlock gradient(std::int64_t entry) const { return slot(entry).gradient; }
  /// Replaces the gradient of an entry by another one of the same size; null data: none.
  void replace_gradient(std::int64_t entry, ConstBlock gradient);
  /// As if none had arrived.
  void drop_gradients();
  /// Notes the squared norm of an entry's gradient; it counts until begin_step().
  void set_squares(std::int64_t entry, double squares);
  /// The squared norm of all gradients of this step.
  [[nodiscard]] double squares() const;

  /// Mixes all parameters and updates those that have a gradient.
  void update(const Optimizer& optimizer, const UpdateContext& context);
  /// Makes the bucket ready for the gradients of the next step.
  void begin_step();

 private:
  struct Slot {
    std::string name;
    Block parameter;
    std::int64_t offset = 0;
    double weight_decay = 0.0;
    /// Updates so far.
    std::int64_t num_updates = 0;
    ConstBlock gradient = {};
    double squares = 0.0;
  };

  [[nodiscard]] const Slot& slot(std::int64_t entry) const {
    return slots_.at(static_cast<std::size_t>(entry));
  }
  /// Updates the elements [first, last) of the block.
  void update_range(const Optimizer& optimizer, const UpdateContext& context, PartRange range);

  std::int64_t index_;
  BucketSpec spec_;
  Buffer memory_;
  std::vector<Buffer> states_;
  std::vector<Slot> slots_;
  std::int64_t num_arrived_ = 0;
  bool updated_ = false;
};

/// The part of a block that begins at element `offset`.
Block part_of(const Block& block, std::int64_t offset, std::int64_t numel);
ConstBlock part_of(const ConstBlock& block, std::int64_t offset, std::int64_t numel);

}  // namespace gossamer
