#pragma once
// The files that options of commands name.

#include <string>
#include <string_view>

namespace gossamer::apps {

/// Writes `text` into the file that `option`, as `--output`, names. Throws ConfigError if it cannot
/// be written.
void write_output(std::string_view option, const std::string& path, std::string_view text);

}  // namespace gossamer::apps
