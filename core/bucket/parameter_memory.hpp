#pragma once
// The memory of a bucket's parameters: one block, or two where the model computes in bfloat16.

#include <utility>

#include "base/buffer.hpp"
#include "base/stream.hpp"
#include "core/bucket/bucket_plan.hpp"
#include "optim/convert.hpp"

namespace gossamer {

/// The memory of one bucket's parameters, on the stream's device; copies share it.
struct ParameterMemory {
  /// The parameters that are mixed, updated and exchanged.
  Buffer parameters = {};
  /// The parameters rounded to BucketSpec::model_dtype, which the model computes with. Empty: the
  /// model computes with `parameters`.
  Buffer rounded = {};
};

/// Zero-filled memory for a bucket.
inline ParameterMemory allocate_parameters(const BucketSpec& spec, Stream& stream) {
  ParameterMemory memory{.parameters = stream.allocate(spec.numel, spec.dtype)};
  if (spec.has_master()) memory.rounded = stream.allocate(spec.numel, spec.model_dtype);
  return memory;
}

/// The memory of a tensor that lies in no bucket, as ModelAverage takes it. A tensor whose type has
/// a master copy gets one on the stream.
inline ParameterMemory memory_of_tensor(Buffer own, Stream& stream) {
  const Block block = own.block();
  if (master_of(block.dtype) == block.dtype) return {.parameters = std::move(own)};
  const Buffer master = stream.allocate(block.numel, master_of(block.dtype));
  enqueue_convert(stream, master.block(), block);
  return {.parameters = master, .rounded = std::move(own)};
}

}  // namespace gossamer
