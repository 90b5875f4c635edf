#pragma once
// One bucket at work: a contiguous block of parameters, their optimizer state, and which gradients
// of the current step have arrived. Where the model computes in bfloat16, the block is the float32
// master copy, and a second one has what the model reads.
//
// Protocol per step: offer() each gradient, then update() once; gradients are forgotten by it, and
// stay where they are until the stream has done the work.
// Invariants: parameter memory is written by update() alone (and by whoever averages or loads,
// between steps). Not thread safe.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.hpp"
#include "base/worker_pool.hpp"
#include "core/bucket_plan.hpp"
#include "core/parameter_memory.hpp"
#include "optim/block_update.hpp"
#include "optim/optimizer.hpp"

namespace gossamer {

/// What an update takes beside the gradients.
struct UpdateContext {
  double lr = 0.0;
  /// What becomes of the gradients, in the stream's memory; null: they are used as they are.
  const GradientDecision* decision = nullptr;
  /// As in ParameterUpdate, for the whole block; they belong to the caller.
  double keep = 1.0;
  std::span<const Inbox> inboxes = {};
  SimdPath simd = best_simd_path();
  /// Shares the work; null: the caller does it alone.
  WorkerPool* pool = nullptr;
};

class Bucket {
 public:
  /// What a bucket works with.
  struct Memory {
    ParameterMemory model = {};
    /// Float64, one element per entry, on the stream's device: squared norms of the gradients.
    Block squares = {};
  };
  /// `stream` outlives the bucket.
  Bucket(std::int64_t index, BucketSpec spec, std::span<const ParameterInfo> parameters,
         Memory memory, int num_states, Stream& stream);

  [[nodiscard]] std::int64_t index() const { return index_; }
  [[nodiscard]] const BucketSpec& spec() const { return spec_; }
  [[nodiscard]] Block parameters() const { return memory_.model.parameters.block(); }
  [[nodiscard]] const ParameterMemory& model_memory() const { return memory_.model; }
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
  /// Replaces the gradient of an entry by another one of the same size, of the model's type or the
  /// bucket's; null data: none.
  void replace_gradient(std::int64_t entry, ConstBlock gradient);
  /// Of the gradients' squared norms; see Memory.
  [[nodiscard]] Block squares() const { return memory_.squares; }
  /// Fills in squares() for the gradients that are there.
  void take_squares(SimdPath simd, WorkerPool* pool);

  /// Mixes all parameters and updates those that have a gradient.
  void update(const Optimizer& optimizer, const UpdateContext& context);
  /// Makes the bucket ready for the gradients of the next step.
  void begin_step();
  /// The last update() has turned out to be mixing alone: it does not count as a step.
  void take_back_update();

 private:
  struct Slot {
    std::string name;
    Block parameter;
    std::int64_t offset = 0;
    double weight_decay = 0.0;
    /// Updates so far.
    std::int64_t num_updates = 0;
    /// The last update() was one of them.
    bool counted = false;
    ConstBlock gradient = {};
  };

  [[nodiscard]] const Slot& slot(std::int64_t entry) const {
    return slots_.at(static_cast<std::size_t>(entry));
  }
  std::int64_t index_;
  BucketSpec spec_;
  Memory memory_;
  Stream& stream_;
  std::vector<Buffer> states_;
  /// See SquaresInput.
  Buffer scratch_;
  std::vector<Slot> slots_;
  std::int64_t num_arrived_ = 0;
  bool updated_ = false;
};

}  // namespace gossamer
