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
std::shared_ptr<const Optimizer> read_own_optimizer(const Options& group, const std::string& name,
                                                    const Optimizer& base) {
  const OptimizerEntry& row = row_of(rows_for(group, optimizer_table()), "optimizer", name);
  for (const OptionEntry& option : row.options) group.allow(option.name);
  const auto given = std::ranges::find_if(
      row.options, [&](const OptionEntry& option) { return group.has(option.name); });
  if (given == row.options.end()) return nullptr;
  std::shared_ptr<const Optimizer> optimizer = make_optimizer(name, group);
  if (optimizer->frozen_moments()) {
    group.fail(given->name, concat("is the same for all parameters with the optimizer ", name,
                                   ", allowed in a group: match, lr, weight_decay"));
  }
  if (!same_kind(*optimizer, base)) {
    group.fail(given->name,
               "makes another rule than that of the section optimizer, allowed: other "
               "numbers of the same rule");
  }
  return optimizer;
}

/// The factor of the schedule's rate. `lr` is that of the section.
double read_lr_factor(const Options& group, double lr) {
  group.allow("lr");
  if (!group.has("lr")) return 1.0;
  const double own = group.number("lr", {.min = 0.0});
  if (lr == 0.0 && own != 0.0) {
    group.fail("lr", "is a multiple of optimizer.lr, which is 0, allowed: 0");
  }
  return lr == 0.0 ? 1.0 : own / lr;
}

ParameterGroup read_group(const Options& group, const OptimizerSection& section) {
  group.inherit(section.options);
  ParameterGroup read{.match = group.text("match", std::nullopt)};
  check_pattern(group, read.match);
  read.lr_factor = read_lr_factor(group, section.lr);
  group.allow("weight_decay");
  if (group.has("weight_decay")) {
    read.weight_decay = group.number("weight_decay", {.min = 0.0});
  }
  read.optimizer = read_own_optimizer(group, section.name, section.optimizer);
  return read;
}

}  // namespace

std::vector<ParameterGroup> read_parameter_groups(const OptimizerSection& section) {
  std::vector<ParameterGroup> groups;
  section.options.allow("groups");
  if (!section.options.has("groups")) return groups;
  for (const Options& group : section.options.named_sections("groups")) {
    groups.push_back(read_group(group, section));
  }
  return groups;
}

}  // namespace gossamer::apps
