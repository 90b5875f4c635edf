#pragma once
// What this program was built with and runs on.

#include <string>

namespace gossamer::apps {

/// Several lines: gossamer, LibTorch, MPI, NCCL, compiler.
std::string version_text();

}  // namespace gossamer::apps
