#pragma once
// In builds with GOSSAMER_CHECK_BLOCKS (the debug preset): proof that nobody wrote a block while it
// was on its way. Costs nothing elsewhere.

#include <cstdint>

#include "base/types.hpp"

namespace gossamer {

class BlockChecksum {
 public:
  void take(const ConstBlock& block);
  /// The block is what it was at take().
  [[nodiscard]] bool matches(const ConstBlock& block) const;

 private:
  std::uint64_t sum_ = 0;
};

/// FNV-1a over a block's bytes.
std::uint64_t checksum(const ConstBlock& block);

}  // namespace gossamer
