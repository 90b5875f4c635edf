#pragma once
// The work of a framework with the tensors of a model that a Pipeline trains. LibTorch's wrapper in
// core/torch and Python's wrapper implement it. The pipeline calls its host on the thread that
// called the pipeline.

#include <vector>

#include "core/bucket/bucket_plan.hpp"
#include "core/bucket/parameter_memory.hpp"

namespace gossamer {

class ParameterHost {
 public:
  ParameterHost() = default;
  ParameterHost(const ParameterHost&) = delete;
  ParameterHost& operator=(const ParameterHost&) = delete;
  virtual ~ParameterHost() = default;

  /// Moves the parameters into new memory for the buckets of a plan, with their values.
  virtual std::vector<ParameterMemory> move_parameters(const BucketPlan& plan) = 0;
  /// All parameters lie in the memory of the last move, and the pipeline uses it.
  virtual void parameters_have_moved() = 0;
  /// Waits until no exchange is under way. What others have written to the parameters since the
  /// last step counts from here on.
  virtual void drain_parameters() = 0;
  /// A bucket has been updated: its gradients are used up.
  virtual void after_update(const BucketSpec& spec) = 0;
  /// Collective, before the first step: the parameters become their means over all ranks. `weight`
  /// is this rank's weight, as in ModelAverage.
  virtual void average_parameters(double weight) = 0;
};

}  // namespace gossamer
