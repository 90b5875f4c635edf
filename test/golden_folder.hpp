#pragma once
// Where records of decent-dp may be found: GOSSAMER_SHARED names the parent of the folder.

#include <cstdlib>
#include <filesystem>

namespace gossamer {

/// May not exist; tests that need it are then skipped.
inline std::filesystem::path golden_folder() {
  const char* shared = std::getenv("GOSSAMER_SHARED");
  return std::filesystem::path(shared != nullptr ? shared : GOSSAMER_SOURCE_DIR "/../shared") /
         "golden";
}

}  // namespace gossamer
