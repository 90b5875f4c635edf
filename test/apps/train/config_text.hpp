#pragma once
// Run configurations from text, for tests.

#include "test/base/thrown.hpp"

#include <string>
#include <vector>

#include "apps/train/run_config.hpp"
#include "base/error.hpp"
#include "base/yaml.hpp"

namespace gossamer::apps {

inline constexpr World kFourRanks{.rank = 0, .size = 4, .node_size = 4};

inline RunConfig read_text(const std::string& yaml, const std::vector<std::string>& overrides = {},
                           const World& world = kFourRanks) {
  YamlNode tree = parse_yaml(yaml, "conf.yaml");
  for (const std::string& override_text : overrides) apply_override(tree, override_text);
  return read_run_config(Options(tree), world, "some/where/conf.yaml");
}

/// The message of the ConfigError that a configuration ends with; empty when there is none.
inline std::string refusal(const std::string& yaml, const std::vector<std::string>& overrides = {},
                           const World& world = kFourRanks) {
  return what_of<ConfigError>([&] { static_cast<void>(read_text(yaml, overrides, world)); });
}

/// The value recorded under a dotted path; `(none)` when there is none.
inline std::string resolved(const std::vector<ResolvedValue>& values, const std::string& path) {
  for (const ResolvedValue& value : values) {
    if (value.path == path) return value.value;
  }
  return "(none)";
}

}  // namespace gossamer::apps
