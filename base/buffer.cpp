#include "base/buffer.hpp"

#include <cstdlib>
#include <limits>
#include <new>
#include <stdexcept>

namespace gossamer {

Buffer::Buffer(std::int64_t numel, DType dtype) {
  if (numel < 0) throw std::logic_error("Buffer: negative size");
  constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max() - kAlignment;
  if (numel > kMostBytes / size_of(dtype)) throw std::bad_alloc();
  const auto bytes = static_cast<std::size_t>(numel * size_of(dtype));
  // calloc() returns fresh zero pages without touching them. The extra bytes make room for the
  // alignment.
  void* base = std::calloc(bytes + kAlignment, 1);
  if (base == nullptr) throw std::bad_alloc();
  owner_ = std::shared_ptr<void>(base, std::free);
  void* aligned = base;
  std::size_t space = bytes + kAlignment;
  aligned = std::align(kAlignment, bytes, aligned, space);
  block_ = {aligned, numel, dtype, {}};
}

}  // namespace gossamer
