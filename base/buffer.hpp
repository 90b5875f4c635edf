#pragma once
// A Buffer owns the memory of one Block. Copies of a Buffer share the memory, which lives until the
// last copy is gone. So an operation in flight can keep the memory alive by holding a copy.

#include <cstdint>
#include <memory>
#include <utility>

#include "base/types.hpp"

namespace gossamer {

/// Zero-filled host memory, aligned to kAlignment bytes, or memory of another kind with its owner.
/// The system provides a page of host memory only when the page is first written.
class Buffer {
 public:
  /// Bytes; buckets round the size of every parameter up to a multiple of it.
  static constexpr std::int64_t kAlignment = 128;

  Buffer() = default;
  /// `numel` elements on the host. Throws std::bad_alloc, and std::logic_error for a negative size.
  Buffer(std::int64_t numel, DType dtype);
  /// Memory of another kind. `block` is valid as long as `owner` or a copy of it lives.
  Buffer(std::shared_ptr<void> owner, const Block& block)
      : owner_(std::move(owner)), block_(block) {}

  [[nodiscard]] Block block() const { return block_; }
  [[nodiscard]] const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  std::shared_ptr<void> owner_;
  Block block_;
};

}  // namespace gossamer
