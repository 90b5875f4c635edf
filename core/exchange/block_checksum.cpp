#include "core/exchange/block_checksum.hpp"

namespace gossamer {

std::uint64_t checksum(const ConstBlock& block) {
  const auto* bytes = static_cast<const std::uint8_t*>(block.data);
  std::uint64_t sum = 0xcbf29ce484222325U;
  for (std::int64_t i = 0; i < block.bytes(); ++i) sum = (sum ^ bytes[i]) * 0x100000001b3U;
  return sum;
}

#ifdef GOSSAMER_CHECK_BLOCKS
void BlockChecksum::take(const ConstBlock& block) { sum_ = checksum(block); }
bool BlockChecksum::matches(const ConstBlock& block) const { return sum_ == checksum(block); }
#else
void BlockChecksum::take(const ConstBlock&) {}
bool BlockChecksum::matches(const ConstBlock&) const { return true; }
#endif

}  // namespace gossamer
