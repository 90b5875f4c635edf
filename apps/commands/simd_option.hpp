#pragma once
// The command line's choice of a vector path.

#include <string>

#include "optim/simd.hpp"

namespace gossamer::apps {

/// `auto` or the name of a path. Throws ConfigError for one that this processor does not have.
SimdPath simd_path_of(const std::string& name);

}  // namespace gossamer::apps
