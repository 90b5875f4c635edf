#pragma once
// Files that tests need and the project does not hold: records of decent-dp, data sets. Tests whose
// files are not there are skipped.

#include <cstdlib>
#include <filesystem>

namespace gossamer {

/// GOSSAMER_SHARED names it; otherwise it lies beside the project's folder. May not exist.
inline std::filesystem::path shared_folder() {
  const char* shared = std::getenv("GOSSAMER_SHARED");
  return shared != nullptr ? shared : GOSSAMER_SOURCE_DIR "/../shared";
}

inline std::filesystem::path golden_folder() { return shared_folder() / "golden"; }

}  // namespace gossamer
