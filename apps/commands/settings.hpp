#pragma once
// Options of commands that become keys of a configuration, so that one place reads and checks them.

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace gossamer::apps {

/// Adds an option. Its value becomes a setting `key=value`, as apply_override() takes it; `to_yaml`
/// makes YAML of a value that is none. `settings` must live as long as the command.
void add_setting(CLI::App& command, std::vector<std::string>& settings, const std::string& option,
                 const std::string& key, const std::string& help,
                 const std::function<std::string(const std::string&)>& to_yaml = {});

}  // namespace gossamer::apps
