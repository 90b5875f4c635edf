#pragma once
// The memory of a bucket's parameters: one block, or two where the model computes in bfloat16.

#include "base/buffer.hpp"
#include "base/stream.hpp"
#include "core/bucket_plan.hpp"

namespace gossamer {

/// A bucket's parameters, on its stream's device.
struct ParameterMemory {
  /// What is mixed, updated and exchanged.
  Buffer parameters = {};
  /// The same rounded to BucketSpec::model_dtype, which the model computes with; empty: it computes
  /// with `parameters`.
  Buffer rounded = {};
};

inline ParameterMemory allocate_parameters(const BucketSpec& spec, Stream& stream) {
  ParameterMemory memory{.parameters = stream.allocate(spec.numel, spec.dtype)};
  if (spec.has_master()) memory.rounded = stream.allocate(spec.numel, spec.model_dtype);
  return memory;
}

}  // namespace gossamer
