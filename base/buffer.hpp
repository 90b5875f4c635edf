#pragma once
// Owning memory for blocks.

#include <cstdint>
#include <memory>
#include <utility>

#include "base/types.hpp"

namespace gossamer {

/// Zero-filled host memory, aligned to 128 bytes (the size to which buckets round parameters).
/// Pages are touched only when first written. Copies share the memory, so that an operation still
/// in flight can keep it alive.
class Buffer {
 public:
  static constexpr std::int64_t kAlignment = 128;

  Buffer() = default;
  /// Throws std::bad_alloc.
  Buffer(std::int64_t numel, DType dtype);
  /// Memory of another kind, for as long as `owner` or a copy of it lives.
  Buffer(std::shared_ptr<void> owner, const Block& block)
      : owner_(std::move(owner)), block_(block) {}

  [[nodiscard]] Block block() const { return block_; }
  [[nodiscard]] const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  std::shared_ptr<void> owner_;
  Block block_;
};

}  // namespace gossamer
