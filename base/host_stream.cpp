#include "base/host_stream.hpp"

#include <cstring>
#include <stdexcept>

namespace gossamer {

void InlineStream::copy(const Block& to, const ConstBlock& from) {
  if (to.bytes() != from.bytes()) throw std::logic_error("Stream::copy: the blocks differ in size");
  if (from.numel > 0) std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
}

void InlineStream::zero(const Block& block) {
  if (block.numel > 0) std::memset(block.data, 0, static_cast<std::size_t>(block.bytes()));
}

}  // namespace gossamer
