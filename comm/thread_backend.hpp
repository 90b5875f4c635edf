#pragma once
// Backend `threads`: the ranks are threads of this process. For one machine without MPI, and for
// tests. See launch.hpp.

#include "comm/launch.hpp"

namespace gossamer {

int launch_threads(const LaunchOptions& options, const RankBody& body);

}  // namespace gossamer
