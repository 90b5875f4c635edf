#pragma once
// Backend `threads`: the ranks are threads of this process. For one machine without MPI, and for
// tests. See launch.hpp.

#include "comm/session.hpp"

namespace gossamer {

Sessions open_threads(const LaunchOptions& options);

}  // namespace gossamer
