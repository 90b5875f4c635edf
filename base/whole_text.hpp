#pragma once
// Reads a whole file, for files that fit into memory.

#include <optional>
#include <string>

namespace gossamer {

/// The bytes of a file; empty if there is none that can be opened. Throws
/// std::filesystem::filesystem_error, which names the file, when reading fails, as on a folder.
std::optional<std::string> whole_text(const std::string& path);

}  // namespace gossamer
