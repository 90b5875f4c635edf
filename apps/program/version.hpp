#pragma once
// What this program was built with and runs on.

#include <string>

namespace gossamer::apps {

/// One line each: gossamer, LibTorch, MPI, NCCL, compiler, allocator.
std::string version_text();

}  // namespace gossamer::apps
