#pragma once
// An optimizer updates the parameters of a block. Most do so in one pass over memory: gossip
// mixing, gradient scaling and the update rule together (OnePassOptimizer). An optimizer of
// matrices needs more passes (rules/muon.hpp). An optimizer is stateless, immutable and thread
// safe: moments and step counts belong to the caller, so one object serves all buckets and all rank
// threads.
//
// A new optimizer is one file in rules/, with a rule for one element (rule.hpp) and a row, which
// every_optimizer.hpp lists.
//
// Errors: std::logic_error for types that do not fit.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "base/types.hpp"
#include "optim/simd.hpp"

namespace gossamer {

class Stream;
struct BlockUpdate;

inline constexpr int kMaxStates = 4;

/// A block that has arrived from another rank or group, and the weight with which it is mixed in.
struct Inbox {
  ConstBlock block = {};
  double weight = 0.0;
};

/// Everything that one step of one parameter needs. All memory belongs to the caller. The blocks
/// have the same number of elements and do not overlap. They have the same dtype, float32 or
/// float64, unless their comment says otherwise.
///
/// A model that computes in bfloat16 has its parameters twice. `parameter` is the float32 master
/// copy, which is mixed and updated; `rounded` is the copy that the model reads. The gradients of
/// such a model are bfloat16 (Micikevicius et al., "Mixed Precision Training", ICLR 2018).
struct ParameterUpdate {
  Block parameter;
  /// The gradient is bfloat16 where there is a rounded copy. Null data: the parameter has no
  /// gradient in this step and is only mixed; a rule with `every_step` also calls its rest().
  ConstBlock gradient = {};
  /// The step writes the new parameter here, rounded to bfloat16. Null data: the model reads
  /// `parameter` itself.
  Block rounded = {};
  /// Mixing computes x <- keep * x + sum of weight * block over the inboxes, in their order. The
  /// numbers for an edge of n ranks with weight w:
  ///
  /// - Pair: a rank receives its peer's x, so keep = w and the one inbox has the weight 1-w.
  /// - Group: a rank receives the sum of all n blocks, so keep = w-p and the one inbox has the
  ///   weight p = (1-w)/(n-1).
  double keep = 1.0;
  /// Empty: nothing is mixed in, and `keep` must be 1.
  std::span<const Inbox> inboxes = {};
  /// The first Optimizer::num_states() pointers point to states, each with as many elements as the
  /// parameter. States are zero before the parameter's first update.
  std::array<void*, kMaxStates> states = {};
  /// The number of this update of the parameter, counted from 1.
  std::int64_t step = 1;
  double lr = 0.0;
  /// Optimizers of GradientUse::kNormalized multiply the part of the step by this that the
  /// gradients make. Weight decay does not follow it.
  double step_scale = 1.0;
  double weight_decay = 0.0;
  /// The gradient is multiplied by this first.
  double gradient_scale = 1.0;
  /// A vector path that this processor must have.
  SimdPath simd = best_simd_path();
};

/// Computes x <- keep * x + sum of weight * block over the inboxes, in one pass over memory. Does
/// nothing without inboxes. The blocks are as in ParameterUpdate. Throws std::logic_error for other
/// types.
void mix(const Block& x, double keep, std::span<const Inbox> inboxes,
         SimdPath simd = best_simd_path());
/// Mixes an update's parameter and its rounded copy, and ignores its gradient.
void mix(const ParameterUpdate& update);

/// Bytes per element of one pass over memory.
struct PassTraffic {
  /// Bytes that the pass reads and does not write.
  std::int64_t read = 0;
  /// Bytes that the pass reads, and writes in the same place.
  std::int64_t changed = 0;
  /// Bytes that the pass writes and does not read.
  std::int64_t written = 0;

  /// All bytes that the pass moves; changed bytes count twice, because they are read and written.
  [[nodiscard]] std::int64_t bytes() const { return read + 2 * changed + written; }
};

/// The moments of an optimizer whose second moment stands still after a warm-up.
struct FrozenMoments {
  /// The decay of the first moment, whose state is named m.
  double beta1 = 0.0;
  /// The number of a parameter's updates after which its second moment stands still.
  std::int64_t warmup = 0;
};

/// What noise in the gradients does to the steps of an optimizer (core/step/recipe.hpp).
enum class GradientUse {
  /// No rule has been found.
  kUnknown,
  /// A step is a sum of gradients, so that the noise of ranks averages out.
  kLinear,
  /// A step has the length of the rate: it is divided by the root mean square of gradients, or of
  /// means over cycle() gradients, or has only their directions. So noise makes the part shorter
  /// that leads downhill.
  kNormalized,
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// The names of the states, at most kMaxStates. A state has one value per parameter element.
  /// Checkpoints name saved states by these names.
  [[nodiscard]] virtual std::span<const std::string_view> state_names() const = 0;
  [[nodiscard]] int num_states() const { return static_cast<int>(state_names().size()); }
  /// The number of steps after which the kinds of update repeat; 1 where all steps are of one kind.
  [[nodiscard]] virtual std::int64_t cycle() const = 0;
  /// The least bytes that a pass must move in a parameter's `step`-th update, with mixing of one
  /// inbox: it reads every old value once and writes every new value once. `model` is the type that
  /// the model computes with; for bfloat16 there is a master copy.
  [[nodiscard]] virtual PassTraffic least_traffic(std::int64_t step, DType model) const = 0;
  /// The moments of which the second one stands still after a warm-up. Null if the second moment
  /// goes on moving, or if there is none.
  [[nodiscard]] virtual std::optional<FrozenMoments> frozen_moments() const { return {}; }
  /// True: every parameter must be a matrix (Segment::rows), and an update needs all of it.
  [[nodiscard]] virtual bool needs_matrices() const { return false; }
  /// True: the rule learns from the mixing of every step. Averages that come every few steps would
  /// mislead it.
  [[nodiscard]] virtual bool follows_mixing() const { return false; }
  /// True: the rule looks at what mixing changes, which must happen in the pass of the update.
  [[nodiscard]] virtual bool sees_mixing() const { return false; }
  [[nodiscard]] virtual GradientUse gradient_use() const { return GradientUse::kUnknown; }
  /// False: this optimizer only mixes parameters, and the caller of the step applies a rule of its
  /// own (ExternalOptimizer).
  [[nodiscard]] virtual bool has_rule() const { return true; }
  /// Gives the steps of whole blocks to the stream. Only enqueue_updates() calls it, after it has
  /// checked the types. This optimizer must outlive the work.
  virtual void enqueue(Stream& stream, std::vector<BlockUpdate> updates) const = 0;
};

/// An optimizer whose rule updates every element independently, so any part of a parameter can be
/// updated alone.
class OnePassOptimizer : public Optimizer {
 public:
  void enqueue(Stream& stream, std::vector<BlockUpdate> updates) const final;
  /// The address of the rule, for kernels that are compiled for the rule's type; null if there are
  /// none.
  [[nodiscard]] virtual const void* rule() const { return nullptr; }
  /// Mixes and updates one piece of a block before it returns. Several threads may call it at once
  /// for distinct pieces.
  virtual void update(const ParameterUpdate& update) const = 0;
  /// Enqueues the steps of whole blocks on a stream whose work does not run on processors (a
  /// GPU's).
  virtual void update_on_device(Stream& stream, std::span<const BlockUpdate> updates) const = 0;
};

/// Whether two optimizers have the same rule, whatever their numbers are.
inline bool same_kind(const Optimizer& a, const Optimizer& b) { return typeid(a) == typeid(b); }

}  // namespace gossamer
