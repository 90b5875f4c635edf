#pragma once
// NCCL itself. It is loaded when it is asked for: the one that LibTorch has loaded, if it has, else
// the first libnccl.so.2 that the loader finds. Communicators do not block the host
// (ncclConfig_t::blocking = 0).

#include <memory>

#include "comm/nccl_api.hpp"

namespace gossamer {

/// Throws ConfigError when there is no NCCL, it is older than 2.18 (ncclCommSplit), or the program
/// was built without it.
std::unique_ptr<NcclApi> load_nccl();

}  // namespace gossamer
