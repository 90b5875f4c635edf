#include "base/whole_text.hpp"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <system_error>

namespace gossamer {

std::optional<std::string> whole_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  errno = 0;
  try {
    return std::string(std::istreambuf_iterator<char>(file), {});
  } catch (const std::ios_base::failure&) {
    // The library's own message has neither the file nor the reason.
    throw std::filesystem::filesystem_error("cannot be read", path,
                                            {errno, std::generic_category()});
  }
}

}  // namespace gossamer
