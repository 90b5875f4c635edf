#pragma once
// The step of a whole block of parameters, as work on a stream. The work mixes every parameter of
// the block, and applies the optimizer's rule to the parameters that have a gradient.
//
// Errors: std::logic_error for types that do not fit. Thread safety: that of the stream.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/stream.hpp"
#include "base/types.hpp"
#include "base/worker_pool.hpp"
#include "optim/exchange_work.hpp"
#include "optim/gradient_control.hpp"
#include "optim/optimizer.hpp"
#include "optim/orthogonalize.hpp"

namespace gossamer {

/// One parameter of a block.
struct Segment {
  /// Elements from the beginning of the block.
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  /// As many elements as the parameter. Null data: the parameter is mixed, not updated; a rule with
  /// kEveryStep also calls its rest() (rule.hpp).
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
  /// As in ParameterUpdate, for the whole block.
  double keep = 1.0;
  std::vector<Inbox> inboxes = {};
  /// On processors only.
  ExchangeWork exchange = {};
  /// In rising order of offsets.
  std::vector<Segment> segments = {};
  double lr = 0.0;
  /// The factor for the gradients, in the stream's memory; work given earlier has written it. Null:
  /// the gradients are used as they are.
  const GradientDecision* decision = nullptr;
  /// For streams on processors. The pool's threads share the work; null: one thread does it.
  SimdPath simd = best_simd_path();
  WorkerPool* pool = nullptr;
  /// For optimizers with needs_matrices(); must outlive the work. Null: orthogonalize(), which GPUs
  /// do not have.
  const Orthogonalize* orthogonalize = nullptr;
};

/// Makes a stream's device ready for the work of optim, so that no later call waits for the device.
/// Does nothing on processors.
void prepare_device(Stream& stream);

/// Gives the step to the stream. The optimizer must outlive the work. Throws std::logic_error when
/// the gradients' types do not fit the parameters'.
void enqueue_update(Stream& stream, const Optimizer& optimizer, BlockUpdate update);

/// x <- keep * x + sum of weight * block over the inboxes. If exchange.coding.decodes is set: sum
/// of weight * (decoded(block) - decoded(coding.own)) instead. Does nothing without inboxes; `keep`
/// must then be 1. Neither encodes nor copies.
void mix(const Block& x, double keep, std::span<const Inbox> inboxes, const ExchangeWork& exchange,
         SimdPath simd);

/// The same as work on the stream. The codec must outlive the work.
void enqueue_mix(Stream& stream, const Block& x, double keep, std::vector<Inbox> inboxes,
                 const ExchangeWork& exchange = {}, SimdPath simd = best_simd_path());

/// coding.own <- encoded(x) with coding.next_grid, as work on the stream. The codec must outlive
/// the work.
void enqueue_encode(Stream& stream, const Coding& coding, const ConstBlock& x,
                    SimdPath simd = best_simd_path());

}  // namespace gossamer
