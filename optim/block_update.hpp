#pragma once
// The step of a whole block of parameters, as work on a stream: mixing for all of it, the
// optimizer's rule for the parameters that have a gradient.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/stream.hpp"
#include "base/types.hpp"
#include "base/worker_pool.hpp"
#include "optim/gradient_control.hpp"
#include "optim/optimizer.hpp"

namespace gossamer {

/// One parameter of a block.
struct Segment {
  /// Elements from the beginning of the block.
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  /// Null data: the parameter is mixed and not updated.
  ConstBlock gradient = {};
  /// 1 for the parameter's first update.
  std::int64_t step = 1;
  double weight_decay = 0.0;
};

/// All blocks have the same dtype, but for `rounded` and its gradients, and lie on the stream's
/// device, and stay until the work is done.
struct BlockUpdate {
  Block parameters = {};
  /// As in ParameterUpdate, for the whole block; the gradients may also be float32 (their sum over
  /// ranks), which takes one more pass.
  Block rounded = {};
  /// The optimizer's num_states() blocks, each as large as `parameters`.
  std::array<void*, kMaxStates> states = {};
  /// As in ParameterUpdate, for the whole block.
  double keep = 1.0;
  std::vector<Inbox> inboxes = {};
  /// In rising order of offsets.
  std::vector<Segment> segments = {};
  double lr = 0.0;
  /// What becomes of the gradients, in the stream's memory: written by work given earlier. Null:
  /// they are used as they are.
  const GradientDecision* decision = nullptr;
  /// For streams on processors. The pool shares the work; null: one thread does it.
  SimdPath simd = best_simd_path();
  WorkerPool* pool = nullptr;
};

/// Gives the step to the stream. The optimizer outlives the work.
void enqueue_update(Stream& stream, const Optimizer& optimizer, BlockUpdate update);

/// x <- keep * x + sum of weight * block over the inboxes, as work on the stream.
void enqueue_mix(Stream& stream, const Block& x, double keep, std::vector<Inbox> inboxes,
                 SimdPath simd = best_simd_path());

}  // namespace gossamer
