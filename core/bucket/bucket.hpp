#pragma once
// A Bucket is one bucket at work. It holds a contiguous block of parameters, the states of the
// optimizer and the algorithm, and the gradients of the current step that have arrived. If the
// model computes in bfloat16, the block is the float32 master copy, and a second block has the
// rounded copy that the model reads.
//
// Protocol per step: offer() each gradient, update() once, then begin_step(). update() forgets the
// gradients; their memory must stay until the stream has done the work. Invariant: in a step, only
// update() writes the parameters. Between steps, averaging and loading may write them.
//
// A bucket may hold the optimizer's states of one shard only. Then update() handles the elements of
// the shard, and the algorithm fetches the other elements from other ranks.
//
// Errors: std::logic_error for a broken protocol. Not thread safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.hpp"
#include "base/state_visitor.hpp"
#include "base/worker_pool.hpp"
#include "core/bucket/bucket_plan.hpp"
#include "core/bucket/parameter_memory.hpp"
#include "core/bucket/parameter_settings.hpp"
#include "core/exchange/shard.hpp"
#include "optim/block_update.hpp"
#include "optim/external_optimizer.hpp"
#include "optim/optimizer.hpp"

namespace gossamer {

class Bucket {
 public:
  /// The memory of a bucket.
  struct Memory {
    ParameterMemory model = {};
    /// Float64, one element per entry, on the stream's device: squared norms of the gradients.
    Block squares = {};
  };
  /// `optimizer` and `stream` must outlive the bucket. If the bucket's parameters name an optimizer
  /// of another kind, the bucket uses that optimizer. Throws std::logic_error if the memory does
  /// not fit the plan, or if the parameters of the bucket name optimizers of different kinds.
  Bucket(std::int64_t index, BucketSpec spec, std::span<const ParameterInfo> parameters,
         Memory memory, const Optimizer& optimizer, Stream& stream);

  [[nodiscard]] std::int64_t index() const { return index_; }
  [[nodiscard]] const BucketSpec& spec() const { return spec_; }
  [[nodiscard]] const Optimizer& optimizer() const { return optimizer_; }
  [[nodiscard]] const Buffer& parameters() const { return memory_.model.parameters; }
  [[nodiscard]] const ParameterMemory& model_memory() const { return memory_.model; }
  [[nodiscard]] std::int64_t num_entries() const {
    return static_cast<std::int64_t>(slots_.size());
  }
  [[nodiscard]] const std::string& name(std::int64_t entry) const { return slot(entry).name; }
  /// The elements of one entry, in a block that is laid out as the parameters are.
  template <class AnyBlock>
  [[nodiscard]] AnyBlock part(const AnyBlock& block, std::int64_t entry) const {
    return part_of(block, slot(entry).offset, slot(entry).parameter.numel);
  }

  /// The elements whose states this bucket holds, and which update() handles: all, unless
  /// keep_shard() was called.
  [[nodiscard]] const Shard& shard() const { return shard_; }
  [[nodiscard]] bool holds_all() const { return shard_.numel == spec_.numel; }
  /// The places at which shards may begin, if the optimizer needs whole parameters; empty: any
  /// place.
  [[nodiscard]] std::vector<std::int64_t> shard_borders() const;
  /// Goes on with the states of other elements. New ones are zero; the others keep their values.
  /// Not inside a step, and while there are no states of add_state().
  void keep_shard(const Shard& shard);
  /// The elements of one entry, in a block that is laid out as the shard is. Empty where the shard
  /// has none.
  template <class AnyBlock>
  [[nodiscard]] AnyBlock part_in_shard(const AnyBlock& block, std::int64_t entry) const {
    const Shard piece = piece_of(slot(entry));
    return part_of(block, piece.first - shard_.first, piece.numel);
  }

  /// Adds a zero-filled block that is laid out as the parameters are. visit() saves and loads it
  /// with each parameter, under the parameter's name and `name`. Algorithms call this in their
  /// constructors.
  Buffer add_state(std::string_view name);
  /// The state of that name; an empty buffer if there is none.
  [[nodiscard]] Buffer state(std::string_view name) const;
  /// The blocks of the optimizer's states and of add_state(), laid out as the shard is.
  [[nodiscard]] std::vector<Buffer> states() const;
  /// Shows the visitor the numbers of updates, entry by entry.
  void visit_updates(StateVisitor& visitor);
  /// Drops all blocks of add_state(). The algorithm must be gone, and the stream's work done.
  void drop_added_states();

  /// Sets the numbers that the updates of an entry use from the next update on, in place of
  /// BlockUpdate::lr and of the numbers of ParameterInfo. Throws std::logic_error for an optimizer
  /// of another kind.
  void set_settings(std::int64_t entry, ParameterSettings settings);
  /// The updates of an entry so far. Of a step that turns out to be left out, they are taken back.
  [[nodiscard]] std::int64_t num_updates(std::int64_t entry) const {
    return slot(entry).num_updates;
  }
  void set_num_updates(std::int64_t entry, std::int64_t num_updates) {
    slots_.at(static_cast<std::size_t>(entry)).num_updates = num_updates;
  }

  /// Tells that the gradient of an entry has arrived. Its memory must stay until the work of
  /// update() is done. Throws std::logic_error for another size or type, and for a second gradient
  /// of the same entry in one step.
  void offer(std::int64_t entry, ConstBlock gradient);
  /// Tells that no more gradients come in this step.
  void close() { is_ready_ = true; }
  /// True if a gradient has arrived in this step.
  [[nodiscard]] bool has_gradients() const { return num_arrived_ > 0; }
  /// True if all gradients have arrived or close() was called in this step.
  [[nodiscard]] bool is_ready() const { return is_ready_ || num_arrived_ == num_entries(); }
  /// The gradient of an entry; null data if none has arrived.
  [[nodiscard]] ConstBlock gradient(std::int64_t entry) const { return slot(entry).gradient; }
  /// Replaces the gradient of an entry. The new gradient has the elements of the entry that lie in
  /// the shard, and the type of the model or of the bucket. Null data removes the gradient.
  void replace_gradient(std::int64_t entry, ConstBlock gradient);
  /// Tells where this rank's own gradients stay until the gradients of the next step come, if
  /// replace_gradient() puts sums over ranks in their place. They are laid out as the parameters
  /// are.
  void set_own_gradients(const ConstBlock& own) { own_gradients_ = own; }
  /// This rank's own gradient of the last step; null data: no sum has taken its place.
  [[nodiscard]] ConstBlock last_own_gradient(std::int64_t entry) const {
    return last_own_gradients_.data == nullptr ? ConstBlock() : part(last_own_gradients_, entry);
  }
  /// True if replace_gradient() was called in this step.
  [[nodiscard]] bool has_replaced_gradients() const { return has_replaced_; }
  /// Copies the gradients that replace_gradient() has set, which then stay until begin_step().
  void keep_replaced_gradients();
  /// Takes replace_gradient() back: the gradients that offer() has brought are the gradients of
  /// this step.
  void restore_gradients();
  /// The memory of the gradients' squared norms; see Memory. take_squares() writes it on streams
  /// that lag behind (update_groups.hpp).
  [[nodiscard]] Block squares() const { return memory_.squares; }
  /// The factor for the gradients of this step, in the stream's memory; null: they are used as they
  /// are. Algorithms read this in before_update().
  [[nodiscard]] const GradientDecision* decision() const { return decision_; }
  void set_decision(const GradientDecision* decision) { decision_ = decision; }
  /// Returns one segment per entry, with the present gradients and with offsets in the shard. The
  /// segments name no optimizers, so any rule may go over them.
  [[nodiscard]] std::vector<Segment> segments() const;

  /// Mixes the parameters of the shard, and updates the parameters that have a gradient. The bucket
  /// adds its memory and its segments to the update, and multiplies the rate by
  /// Intake::update_scale. Inboxes have the elements of the shard. An optimizer without a rule
  /// (Optimizer::has_rule()) leaves the rule to the caller. The caller applies its own rule to
  /// external_step(), and then calls finish_external_step(). This call copies or encodes the
  /// parameters for the next exchange.
  void update(BlockUpdate update);
  /// Does what update() does, except that the caller gives the returned work to the stream, for
  /// this bucket's optimizer() (enqueue_updates()).
  [[nodiscard]] BlockUpdate begin_update(BlockUpdate update);
  /// The step that the caller's own rule gets after update(). Waits for the stream.
  [[nodiscard]] ExternalStep external_step();
  /// The rule has changed the parameters.
  void finish_external_step();
  /// Enqueues the rounding of the parameters into the rounded copy, if there is one.
  void write_rounded();
  /// Makes the bucket ready for the gradients of the next step.
  void begin_step();
  /// Makes the last update() not count as a step of the optimizer, because it turned out to mix
  /// only.
  void rollback_update();

  /// Shows the visitor parameters, states and numbers of updates, entry by entry. The stream's work
  /// must be done before. After loading, the rounding of the parameters may still be under way.
  /// Throws std::logic_error unless the bucket holds the states of all elements.
  void visit(StateVisitor& visitor);

 private:
  struct Slot {
    std::string name;
    Block parameter;
    std::int64_t offset = 0;
    /// 0: the parameter is no matrix.
    std::int64_t rows = 0;
    double weight_decay = 0.0;
    double lr_factor = 1.0;
    /// The optimizer of the parameter; null: the bucket's.
    std::shared_ptr<const Optimizer> optimizer = {};
    std::optional<ParameterSettings> settings = {};
    /// Updates of this parameter so far.
    std::int64_t num_updates = 0;
    /// True if the last update() counted as an update of this parameter.
    bool counted = false;
    ConstBlock gradient = {};
    /// The gradient that offer() has brought in this step.
    ConstBlock offered = {};
  };
  /// Throws std::logic_error unless a parameter can have the optimizer.
  void require_same_kind(const Optimizer& own, const std::string& parameter) const;
  /// The segments of the next update, with what parameters have of their own. `update` has the
  /// bucket's rate.
  [[nodiscard]] std::vector<Segment> own_segments(const BlockUpdate& update) const;

  struct NamedState {
    std::string name;
    Buffer buffer;
  };

  /// The elements that the shard has of an entry, from the beginning of the bucket's block.
  [[nodiscard]] Shard piece_of(const Slot& slot) const {
    return part_within({.first = slot.offset, .numel = slot.parameter.numel}, shard_);
  }
  [[nodiscard]] const Slot& slot(std::int64_t entry) const {
    return slots_.at(static_cast<std::size_t>(entry));
  }

  void drop_kept_gradients();

  std::int64_t index_;
  BucketSpec spec_;
  Shard shard_;
  Memory memory_;
  const Optimizer& optimizer_;
  Stream& stream_;
  /// The states of the optimizer, then the states of the algorithm.
  std::vector<NamedState> states_;
  std::vector<Slot> slots_;
  const GradientDecision* decision_ = nullptr;
  std::int64_t num_arrived_ = 0;
  bool is_ready_ = false;
  bool is_updated_ = false;
  bool has_replaced_ = false;
  ConstBlock own_gradients_ = {};
  ConstBlock last_own_gradients_ = {};
  std::vector<Buffer> kept_gradients_;
  /// The work that the last update() has left to the caller's rule, and to finish_external_step().
  BlockUpdate own_update_ = {};
};

/// Shows a visitor a block of the stream's memory through host memory, and waits for the copies.
void visit_block(StateVisitor& visitor, Stream& stream, const std::string& name,
                 const Block& block);

}  // namespace gossamer
