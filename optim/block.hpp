#pragma once
// What one step of a block of parameters works on: the parameters, what mixes with them, and the
// gradients. optim/block_update.hpp makes the step, piece by piece: a ParameterUpdate is the step
// of one piece.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/types.hpp"
#include "base/worker_pool.hpp"
#include "optim/gradient_control.hpp"
#include "optim/intake.hpp"
#include "optim/optimizer.hpp"
#include "optim/orthogonalize.hpp"

namespace gossamer {

/// One parameter of a block.
struct Segment {
  /// Elements from the beginning of the block.
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  /// The gradient, with as many elements as the parameter. Null data: the parameter is mixed, not
  /// updated; a rule with kEveryStep also calls its rest() (rule.hpp).
  ConstBlock gradient = {};
  /// 1 for the parameter's first update.
  std::int64_t step = 1;
  double weight_decay = 0.0;
  /// The parameter's own learning rate. Empty: that of the block.
  std::optional<double> lr = {};
  /// An optimizer of the block's kind (same_kind()) with numbers of the parameter's own; must
  /// outlive the work. Null: the block's optimizer.
  const Optimizer* optimizer = nullptr;
  /// The parameter is a matrix with so many rows, in row-major order. For optimizers with
  /// needs_matrices().
  std::int64_t rows = 0;
};

/// One step of a block. All memory lies on the stream's device and must stay until the work is
/// done. All blocks have the dtype of `parameters`, except `rounded` and the gradients of a
/// bfloat16 model.
struct BlockUpdate {
  Block parameters = {};
  /// As in ParameterUpdate, for the whole block. Here the gradients may also all be float32, as
  /// their sum over ranks is; that costs one more pass over the block.
  Block rounded = {};
  /// The optimizer's num_states() blocks, each as large as `parameters`.
  std::array<void*, kMaxStates> states = {};
  /// In rising order of offsets.
  std::vector<Segment> segments = {};
  double lr = 0.0;
  /// The factor for the gradients, in the stream's memory; work given earlier has written it. Null:
  /// the gradients are used as they are.
  const GradientDecision* decision = nullptr;
  /// What is mixed in; the inboxes are as large as `parameters`. Intake::exchange works on
  /// processors only. Whoever sets the rates has multiplied them by Intake::update_scale.
  Intake intake = {};
  /// For streams on processors. The pool's threads share the work; null: one thread does it.
  SimdPath simd = best_simd_path();
  WorkerPool* pool = nullptr;
  /// For optimizers with needs_matrices(); must outlive the work. Null: orthogonalize(), which GPUs
  /// do not have.
  const Orthogonalize* orthogonalize = nullptr;
};

/// The step of the elements [range.first, range.last) of a block, which all belong to the segment:
/// without mixing, and with gradients as they are.
ParameterUpdate piece_of(const BlockUpdate& update, const Segment& segment, PartRange range);

}  // namespace gossamer
