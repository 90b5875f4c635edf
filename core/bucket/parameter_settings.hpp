#pragma once
// The numbers that one parameter's updates use, where parameters differ or the caller decides.
// Examples are groups of parameters with rates of their own, and schedules of a Python program.

#include <memory>

#include "optim/optimizer.hpp"

namespace gossamer {

struct ParameterSettings {
  double lr = 0.0;
  double weight_decay = 0.0;
  /// An optimizer of the bucket's kind with numbers of its own, such as other betas. Null: as
  /// before.
  std::shared_ptr<const Optimizer> optimizer = {};
};

}  // namespace gossamer
