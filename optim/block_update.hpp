#pragma once
// The step of a whole block of parameters, as work on a stream. The work mixes every parameter of
// the block, and applies the optimizer's rule to the parameters that have a gradient.
//
// Errors: std::logic_error for types that do not fit. Thread safety: the same as the stream's.

#include <span>
#include <vector>

#include "base/stream.hpp"
#include "optim/block.hpp"

namespace gossamer {

/// Makes a stream's device ready for the work of optim, so that no later call waits for the device.
/// Does nothing on processors.
void prepare_device(Stream& stream);

/// Gives the step to the stream. The optimizer must outlive the work. Throws std::logic_error when
/// the gradients' types do not fit the parameters'.
void enqueue_update(Stream& stream, const Optimizer& optimizer, BlockUpdate update);
/// Gives the steps of several blocks to the stream. On a GPU, blocks of the same types share
/// launches, with the bits of single steps (optim/cuda/sweep_table.hpp). No step may need the
/// result of another one.
void enqueue_updates(Stream& stream, const Optimizer& optimizer, std::vector<BlockUpdate> updates);

/// x <- keep * x + sum of weight * block over the inboxes. If exchange.coding.decodes is set: sum
/// of weight * (decoded(block) - decoded(coding.own)) instead. Does nothing without inboxes; `keep`
/// must then be 1. Neither encodes nor copies.
void mix(const Block& x, double keep, std::span<const Inbox> inboxes, const ExchangeWork& exchange,
         SimdPath simd);

/// Gives the work of mix() to the stream. The codec must outlive the work.
void enqueue_mix(Stream& stream, const Block& x, double keep, std::vector<Inbox> inboxes,
                 const ExchangeWork& exchange = {}, SimdPath simd = best_simd_path());

/// coding.own <- encoded(x) with coding.next_grid, as work on the stream. The codec must outlive
/// the work.
void enqueue_encode(Stream& stream, const Coding& coding, const ConstBlock& x,
                    SimdPath simd = best_simd_path());

}  // namespace gossamer
