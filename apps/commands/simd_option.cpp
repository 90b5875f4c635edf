#include "apps/commands/simd_option.hpp"

#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

SimdPath simd_path_of(const std::string& name) {
  if (name == "auto") return best_simd_path();
  std::vector<std::string> available = {"auto"};
  for (const SimdPath path : available_simd_paths()) {
    if (name == name_of(path)) return path;
    available.emplace_back(name_of(path));
  }
  throw ConfigError(
      "command line", "--simd",
      concat("this processor has no path ", name, ", allowed: ", join(available, ", ")));
}

}  // namespace gossamer::apps
