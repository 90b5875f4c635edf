#pragma once
// An optimizer updates one parameter at a time, in one pass over memory: gossip mixing, gradient
// scaling and the update rule together. It is stateless and immutable: moments and step counts
// belong to the caller, so one object serves all buckets and all rank threads.
//
// A new optimizer is one file in rules/: a rule for one element (rule.hpp) and a factory; plus a
// row in registry.cpp.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/types.hpp"
#include "optim/simd.hpp"

namespace gossamer {

class Stream;
struct BlockUpdate;

inline constexpr int kMaxStates = 4;

/// What has arrived from somebody, and how much of it is taken.
struct Inbox {
  ConstBlock block = {};
  double weight = 0.0;
};

/// Everything one parameter needs for one step. Blocks have the same number of elements and, but
/// for what is said below, the same dtype, float32 or float64; they do not overlap.
///
/// A model that computes in bfloat16 has its parameters twice: `parameter` is the float32 master
/// copy, which is mixed and updated, and `rounded` is what the model reads. Its gradients are
/// bfloat16 (Micikevicius et al., "Mixed Precision Training", ICLR 2018).
struct ParameterUpdate {
  Block parameter;
  /// Null data: the parameter has no gradient in this step. It is mixed; a rule with kEveryStep
  /// also goes on.
  /// Bfloat16 where there is a rounded copy.
  ConstBlock gradient = {};
  /// Written: the parameter rounded to bfloat16. Null data: the model reads `parameter`.
  Block rounded = {};
  /// x <- keep * x + sum of weight * block over the inboxes, in their order. For an edge of n ranks
  /// with weight w: a pair receives its peer's x, so keep = w and one inbox with 1-w; a group
  /// receives the sum of all n, so keep = w-p and one inbox with p = (1-w)/(n-1).
  double keep = 1.0;
  /// Empty: nothing is mixed in. Belongs to the caller.
  std::span<const Inbox> inboxes = {};
  /// num_states() pointers to as many elements as the parameter; zero before its first update.
  std::array<void*, kMaxStates> states = {};
  /// 1 for the parameter's first update.
  std::int64_t step = 1;
  double lr = 0.0;
  double weight_decay = 0.0;
  /// The gradient is multiplied by this first.
  double gradient_scale = 1.0;
  /// Must be available on this processor.
  SimdPath simd = best_simd_path();
};

/// x <- keep * x + sum of weight * block over the inboxes, in one pass; what an update without a
/// gradient does. Blocks as in ParameterUpdate.
void mix(const Block& x, double keep, std::span<const Inbox> inboxes,
         SimdPath simd = best_simd_path());
/// The same for an update's parameter and its rounded copy.
void mix(const ParameterUpdate& update);

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// The names of its states, at most kMaxStates: one value per parameter element each. Saved state
  /// goes by them.
  [[nodiscard]] virtual std::span<const std::string_view> state_names() const = 0;
  [[nodiscard]] int num_states() const { return static_cast<int>(state_names().size()); }
  /// Steps after which the update's kind repeats; 1 where all are alike.
  [[nodiscard]] virtual std::int64_t cycle() const = 0;
  /// Bytes per element that a pass over memory must move at the least in a parameter's `step`-th
  /// update, mixing of one inbox included: everything read once, everything new written once.
  /// `model`: what the model computes with; bfloat16 has a master copy.
  [[nodiscard]] virtual std::int64_t least_bytes(std::int64_t step, DType model) const = 0;
  /// Mixes and updates. Thread safe for distinct parameters.
  virtual void update(const ParameterUpdate& update) const = 0;
  /// The step of a whole block on a stream that does not run on processors; see block_update.hpp.
  virtual void update_on_device(Stream& stream, const BlockUpdate& update) const = 0;
};

}  // namespace gossamer
