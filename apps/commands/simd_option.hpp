#pragma once
// Reads the vector path that the user has chosen on the command line.

#include <string>

#include "optim/simd.hpp"

namespace gossamer::apps {

/// `name` is `auto` or the name of a path. Throws ConfigError for a path that this processor does
/// not have.
SimdPath simd_path_of(const std::string& name);

}  // namespace gossamer::apps
