#include "apps/commands/output_file.hpp"

#include <fstream>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

void write_output(std::string_view option, const std::string& path, std::string_view text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) {
    throw ConfigError("command line", option,
                      concat(path, " cannot be written, allowed: a file in a folder that exists"));
  }
}

}  // namespace gossamer::apps
