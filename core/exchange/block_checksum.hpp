#pragma once
// Finds writes to a block that is on its way to other ranks, in builds with GOSSAMER_CHECK_BLOCKS
// (the presets debug and asan). In other builds take() does nothing and matches() returns true. Not
// thread safe.

#include <cstdint>

#include "base/types.hpp"

namespace gossamer {

/// Remembers the checksum of one block in host memory.
class BlockChecksum {
 public:
  void take(const ConstBlock& block);
  /// True if the block's bytes are the same as at take().
  [[nodiscard]] bool matches(const ConstBlock& block) const;

 private:
  std::uint64_t sum_ = 0;
};

/// FNV-1a over the bytes of a block in host memory.
std::uint64_t checksum(const ConstBlock& block);

}  // namespace gossamer
