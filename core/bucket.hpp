#pragma once
// One bucket at work: a contiguous block of parameters, the states of its optimizer and algorithm,
// and the gradients of the current step that have arrived. Where the model computes in bfloat16,
// the block is the float32 master copy, and a second block has the rounded copy that the model
// reads.
//
// Protocol per step: offer() each gradient, then update() once. update() forgets the gradients;
// their memory must stay until the stream has done the work. Invariant: update() writes the
// parameters, and between steps whoever averages or loads; nobody else does. Not thread safe.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.hpp"
#include "base/worker_pool.hpp"
#include "core/bucket_plan.hpp"
#include "core/intake.hpp"
#include "core/parameter_memory.hpp"
#include "core/state_visitor.hpp"
#include "optim/block_update.hpp"
#include "optim/optimizer.hpp"

namespace gossamer {

class Bucket {
 public:
  /// What a bucket works with.
  struct Memory {
    ParameterMemory model = {};
    /// Float64, one element per entry, on the stream's device: squared norms of the gradients.
    Block squares = {};
  };
  /// Both references outlive the bucket.
  Bucket(std::int64_t index, BucketSpec spec, std::span<const ParameterInfo> parameters,
         Memory memory, const Optimizer& optimizer, Stream& stream);

  [[nodiscard]] std::int64_t index() const { return index_; }
  [[nodiscard]] const BucketSpec& spec() const { return spec_; }
  [[nodiscard]] const Buffer& parameters() const { return memory_.model.parameters; }
  [[nodiscard]] const ParameterMemory& model_memory() const { return memory_.model; }
  [[nodiscard]] std::int64_t num_entries() const {
    return static_cast<std::int64_t>(slots_.size());
  }
  [[nodiscard]] const std::string& name(std::int64_t entry) const { return slot(entry).name; }
  /// An entry's elements of a block that is laid out as the parameters are.
  template <class AnyBlock>
  [[nodiscard]] AnyBlock part(const AnyBlock& block, std::int64_t entry) const {
    return part_of(block, slot(entry).offset, slot(entry).parameter.numel);
  }

  /// A zero-filled block laid out as the parameters are, which is saved and loaded with them under
  /// the parameters' names and this one. For algorithms, when they are made.
  Buffer add_state(std::string_view name);

  /// The gradient of an entry has arrived; it is read until update(). Throws std::logic_error when
  /// one is there already or has been used in this step.
  void offer(std::int64_t entry, ConstBlock gradient);
  /// No more gradients come in this step.
  void close() { is_ready_ = true; }
  /// All gradients are there, or close() was called.
  [[nodiscard]] bool is_ready() const { return is_ready_ || num_arrived_ == num_entries(); }
  /// Null data where no gradient has arrived.
  [[nodiscard]] ConstBlock gradient(std::int64_t entry) const { return slot(entry).gradient; }
  /// Replaces the gradient of an entry by another one of the same size, of the model's type or the
  /// bucket's; null data: none.
  void replace_gradient(std::int64_t entry, ConstBlock gradient);
  /// replace_gradient() has been called in this step.
  [[nodiscard]] bool has_replaced_gradients() const { return has_replaced_; }
  /// Of the gradients' squared norms; see Memory.
  [[nodiscard]] Block squares() const { return memory_.squares; }
  /// Fills in squares() for the gradients that are there.
  void take_squares(SimdPath simd, WorkerPool* pool);
  /// What becomes of the gradients of this step, in the stream's memory; null: they are used as
  /// they are. For algorithms, in before_update().
  [[nodiscard]] const GradientDecision* decision() const { return decision_; }
  void set_decision(const GradientDecision* decision) { decision_ = decision; }
  /// One segment per entry, with the gradients that are there now.
  [[nodiscard]] std::vector<Segment> segments() const;

  struct Update {
    double lr = 0.0;
    /// As decision().
    const GradientDecision* decision = nullptr;
    Intake intake = {};
    SimdPath simd = best_simd_path();
    /// Shares the work; null: the caller does it alone.
    WorkerPool* pool = nullptr;
  };
  /// Mixes all parameters and updates those that have a gradient.
  void update(const Update& update);
  /// Makes the rounded copy what the parameters are, where there is one.
  void write_rounded();
  /// Makes the bucket ready for the gradients of the next step.
  void begin_step();
  /// The last update() has turned out to be mixing alone: it does not count as a step.
  void take_back_update();

  /// Names parameters, states and numbers of updates, entry by entry. The stream's work is done
  /// before and afterwards.
  void visit(StateVisitor& visitor);

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
  struct NamedState {
    std::string name;
    Buffer buffer;
  };

  [[nodiscard]] const Slot& slot(std::int64_t entry) const {
    return slots_.at(static_cast<std::size_t>(entry));
  }

  std::int64_t index_;
  BucketSpec spec_;
  Memory memory_;
  const Optimizer& optimizer_;
  Stream& stream_;
  /// The optimizer's first, then those of the algorithm.
  std::vector<NamedState> states_;
  /// See SquaresInput.
  Buffer scratch_;
  std::vector<Slot> slots_;
  const GradientDecision* decision_ = nullptr;
  std::int64_t num_arrived_ = 0;
  bool is_ready_ = false;
  bool is_updated_ = false;
  bool has_replaced_ = false;
};

/// Shows a visitor a block of the stream's memory.
void visit_block(StateVisitor& visitor, Stream& stream, const std::string& name,
                 const Block& block);

}  // namespace gossamer
