#pragma once
// What every backend demands of its callers. Broken preconditions are std::logic_errors.

#include <stdexcept>

#include "gossamer/core/base/text.hpp"
#include "gossamer/core/base/types.hpp"

namespace gossamer {

inline void require_alike(const char* operation, const ConstBlock& send, const Block& receive) {
  if (send.numel == receive.numel && send.dtype == receive.dtype) return;
  throw std::logic_error(concat(operation, ": the blocks differ in size or type"));
}

inline void require_rank(const char* operation, int rank, int size) {
  if (rank >= 0 && rank < size) return;
  throw std::logic_error(concat(operation, ": there is no rank ", rank, " among ", size));
}

inline void require_peer(const char* operation, int peer, int rank, int size) {
  require_rank(operation, peer, size);
  if (peer != rank) return;
  throw std::logic_error(concat(operation, ": rank ", rank, " cannot be its own peer"));
}

}  // namespace gossamer
