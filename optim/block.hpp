#pragma once
// The data of one step of a block of parameters: the parameters, the blocks to mix in, and the
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
  /// updated; a rule with `every_step` also calls its rest() (rule.hpp).
  ConstBlock gradient = {};
  /// 1 for the parameter's first update.
  std::int64_t step = 1;
  double weight_decay = 0.0;
  /// The parameter's own learning rate. Empty: the rate of the block.
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
  /// The rounded copy of the whole block (ParameterUpdate). Here the gradients may also all be
  /// float32, as their sum over ranks is; that costs one more pass over the block.
  Block rounded = {};
  /// The optimizer's num_states() blocks, each as large as `parameters`.
  std::array<void*, kMaxStates> states = {};
  /// The segments in rising order of offsets.
  std::vector<Segment> segments = {};
  double lr = 0.0;
  /// ParameterUpdate::step_scale.
  double step_scale = 1.0;
  /// The factor for the gradients, in the stream's memory; work given earlier has written it. Null:
  /// the gradients are used as they are.
  const GradientDecision* decision = nullptr;
  /// The blocks to mix in; the inboxes are as large as `parameters`. The caller has already
  /// multiplied the rates by Intake::update_scale.
  Intake intake = {};
  /// The pool whose threads share the work of streams on processors; null: one thread does the
  /// work.
  SimdPath simd = best_simd_path();
  WorkerPool* pool = nullptr;
  /// Makes matrices orthogonal for optimizers with needs_matrices(); must outlive the work. Null:
  /// orthogonalize(), which works on processors only.
  const Orthogonalize* orthogonalize = nullptr;
};

/// The step of the elements [range.first, range.last) of a block, which all belong to the segment:
/// without mixing, and with gradients as they are.
ParameterUpdate piece_of(const BlockUpdate& update, const Segment& segment, PartRange range);

}  // namespace gossamer
