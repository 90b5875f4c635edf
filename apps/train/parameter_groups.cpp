#include "apps/train/parameter_groups.hpp"

#include <algorithm>
#include <regex>

#include "base/registry.hpp"
#include "base/text.hpp"
#include "optim/registry.hpp"

namespace gossamer::apps {
namespace {

void check_pattern(const Options& group, const std::string& match) {
  try {
    static_cast<void>(std::regex(match));
  } catch (const std::regex_error& error) {
    group.fail("match", concat("'", match, "' is no regular expression (", error.what(),
                               "), allowed: as in norm|bias"));
  }
}

/// Null: the group has no numbers of its own.
std::shared_ptr<const Optimizer> read_own_optimizer(const Options& group, const std::string& name) {
  const OptimizerEntry& row = row_of(rows_for(group, optimizer_table()), "optimizer", name);
  const auto given = std::ranges::find_if(
      row.options, [&](const OptionEntry& option) { return group.has(option.name); });
  if (given == row.options.end()) return nullptr;
  std::shared_ptr<const Optimizer> optimizer = make_optimizer(name, group);
  if (optimizer->frozen_moments()) {
    group.fail(given->name, concat("is the same for all parameters with the optimizer ", name,
                                   ", allowed in a group: match, lr, weight_decay"));
  }
  return optimizer;
}

ParameterGroup read_group(const Options& group, const Options& optimizer, const std::string& name,
                          double lr) {
  group.inherit(optimizer);
  ParameterGroup read{.match = group.text("match", std::nullopt)};
  check_pattern(group, read.match);
  const double own_lr = group.number("lr", {.fallback = lr, .min = 0.0});
  if (own_lr != lr) {
    if (lr == 0.0) {
      group.fail("lr", "is a multiple of optimizer.lr, which is 0, allowed: 0");
    }
    read.lr_factor = own_lr / lr;
  }
  if (group.has("weight_decay")) {
    read.weight_decay = group.number("weight_decay", {.min = 0.0});
  }
  read.optimizer = read_own_optimizer(group, name);
  return read;
}

}  // namespace

std::vector<ParameterGroup> read_parameter_groups(const Options& optimizer, const std::string& name,
                                                  double lr) {
  std::vector<ParameterGroup> groups;
  if (!optimizer.has("groups")) return groups;
  for (const Options& group : optimizer.named_sections("groups")) {
    groups.push_back(read_group(group, optimizer, name, lr));
  }
  return groups;
}

}  // namespace gossamer::apps
