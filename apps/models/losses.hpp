#pragma once
// The losses: functions of a model's outputs and of the right answers. To add a loss, add a row in
// losses.cpp. No state; any thread may call.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "apps/data/dataset.hpp"

namespace gossamer::apps {

/// `outputs` are [answers, num_outputs]. `targets` are classes, [answers] int64, or numbers,
/// [answers, num_outputs] float32.
struct LossEntry {
  std::string_view name;
  std::string_view summary;
  TargetKind takes;
  /// The sum over all answers if `sum`, otherwise their mean. The loss of an answer with several
  /// numbers is the mean over its numbers.
  torch::Tensor (*of)(const torch::Tensor& outputs, const torch::Tensor& targets, bool sum);
  /// The number of right answers; null: there is no right and wrong.
  torch::Tensor (*num_correct)(const torch::Tensor& outputs, const torch::Tensor& targets);
  /// True: the numbers that are the targets must be from 0 to 1.
  bool needs_fractions = false;
};

std::span<const LossEntry> loss_table();
/// `auto`, then the names of the table.
std::vector<std::string> loss_names();
/// The loss of this name, or for `auto` the usual one for these targets. Throws ConfigError for a
/// loss that does not take them.
const LossEntry& loss_for(std::string_view name, TargetKind targets);

/// Throws DataError for a target that the loss cannot take.
void check_targets(const LossEntry& loss, const Dataset& data);

}  // namespace gossamer::apps
