#pragma once
// Parameters with numbers of their own, chosen by name.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "optim/optimizer.hpp"

namespace gossamer {

struct ParameterGroup {
  /// A regular expression of ECMAScript. The group takes the parameters whose names hold a match
  /// anywhere, unless an earlier group has taken them. Not set: none by name.
  std::optional<std::string> match = {};
  /// The group also takes the parameters of at most one dimension: biases, normalisation.
  bool vectors = false;
  /// The learning rate is the schedule's, times this factor.
  double lr_factor = 1.0;
  /// The weight decay of all parameters of the group, biases and normalisation included. Not set:
  /// the usual rule.
  std::optional<double> weight_decay = {};
  /// An optimizer of the group's own: the pipeline's with other numbers, or another one. Null: the
  /// pipeline's.
  std::shared_ptr<const Optimizer> optimizer = {};
};

/// The optimizers that groups name.
inline std::vector<std::shared_ptr<const Optimizer>> optimizers_of(
    std::span<const ParameterGroup> groups) {
  std::vector<std::shared_ptr<const Optimizer>> optimizers;
  for (const ParameterGroup& group : groups) {
    if (group.optimizer) optimizers.push_back(group.optimizer);
  }
  return optimizers;
}

}  // namespace gossamer
