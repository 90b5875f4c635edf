#pragma once
// NCCL for tests that are skipped where there is none.

#include <memory>
#include <string>

#include "base/error.hpp"
#include "comm/nccl/library.hpp"

namespace gossamer {

/// Null where NCCL is not installed or was not built in. A library that is there but cannot be used
/// is a failure: ConfigError.
inline std::unique_ptr<NcclApi> nccl_or_null() {
  try {
    return load_nccl();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    for (const char* absent : {"No such file or directory", "built without NCCL"}) {
      if (text.find(absent) != std::string::npos) return nullptr;
    }
    throw;
  }
}

}  // namespace gossamer
