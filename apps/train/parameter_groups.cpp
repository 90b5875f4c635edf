#include "apps/train/parameter_groups.hpp"

#include <algorithm>
#include <regex>

#include "apps/train/sections.hpp"
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
std::shared_ptr<const Optimizer> read_own_optimizer(const Options& group,
                                                    const OptimizerSection& section) {
  group.allow("optimizer");
  const std::string name =
      group.has("optimizer")
          ? group.read(group_section::kOptimizer, std::nullopt, optimizer_names(section.own))
          : section.name;
  const OptimizerEntry& row = row_of(with_own(optimizer_table(), section.own), "optimizer", name);
  for (const OptionEntry& option : row.options) group.allow(option.name);
  const auto given = std::ranges::find_if(
      row.options, [&](const OptionEntry& option) { return group.has(option.name); });
  const bool has_options = given != row.options.end();
  if (!group.has("optimizer") && !has_options) return nullptr;
  std::shared_ptr<const Optimizer> optimizer = make_optimizer(name, group, section.own);
  const char* const key = group.has("optimizer") ? "optimizer" : given->name.data();
  const bool is_frozen = optimizer->frozen_moments() || section.optimizer.frozen_moments();
  if (is_frozen && (has_options || !same_kind(*optimizer, section.optimizer))) {
    group.fail(key,
               "is the same for all parameters with the optimizer qadam, allowed in a group: "
               "match, vectors, lr, weight_decay");
  }
  return optimizer;
}

/// The factor of the schedule's rate. `lr` is the rate of the section.
double read_lr_factor(const Options& group, double lr) {
  group.allow("lr");
  if (!group.has("lr")) return 1.0;
  const double own = group.read(group_section::kLr);
  if (lr == 0.0 && own != 0.0) {
    group.fail("lr", "is a multiple of optimizer.lr, which is 0, allowed: 0");
  }
  return lr == 0.0 ? 1.0 : own / lr;
}

ParameterGroup read_group(const Options& group, const OptimizerSection& section) {
  // Keys of equal names mean other things to other optimizers.
  const TextOption own{.name = group_section::kOptimizer.name};
  if (!group.has(own.name) || canonical_name(group.read(own)) == canonical_name(section.name)) {
    group.inherit(section.options);
  }
  ParameterGroup read{.vectors = group.read(group_section::kVectors)};
  if (group.has("match") || !read.vectors) {
    read.match = group.read(group_section::kMatch);
    check_pattern(group, *read.match);
  }
  read.lr_factor = read_lr_factor(group, section.lr);
  group.allow("weight_decay");
  if (group.has("weight_decay")) read.weight_decay = group.read(group_section::kWeightDecay);
  read.optimizer = read_own_optimizer(group, section);
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
