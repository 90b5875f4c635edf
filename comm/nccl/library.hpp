#pragma once
// NCCL itself, loaded at run time: the library that LibTorch has loaded, if there is one, else the
// first libnccl.so.2 that the loader finds. Its communicators do not block the host
// (ncclConfig_t::blocking = 0).

#include <memory>

#include "comm/nccl/api.hpp"

namespace gossamer {

/// Throws ConfigError when NCCL is missing, is older than 2.18 (ncclCommSplit), or was not built
/// in.
std::unique_ptr<NcclApi> load_nccl();

}  // namespace gossamer
