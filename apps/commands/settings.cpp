#include "apps/commands/settings.hpp"

#include "base/text.hpp"

namespace gossamer::apps {

void add_setting(CLI::App& command, std::vector<std::string>& settings, const std::string& option,
                 const std::string& key, const std::string& help,
                 const std::function<std::string(const std::string&)>& to_yaml) {
  command
      .add_option_function<std::string>(
          option,
          [&settings, key, to_yaml](const std::string& value) {
            settings.push_back(concat(key, "=", to_yaml ? to_yaml(value) : value));
          },
          help)
      ->trigger_on_parse();
}

}  // namespace gossamer::apps
