#pragma once
// Sends few elements of a block: the largest differences between two blocks. A layout divides the
// elements into parts of up to kPart, and chooses the same share of every part. A message has a
// fixed size, and for each part
//
//   the values of the chosen elements, of the block's type
//   their places in the part, as uint16
//   unused bytes up to a multiple of 8
//
// "Largest" compares the exponents and the first 3 bits of the significands of the differences as
// float32. So two differences whose sizes differ by less than an eighth may count as equal. Of
// equal elements the first ones win. Values that are not numbers are the largest.
//
// Thread safety: immutable after the last add(). Processors only.

#include <cstdint>
#include <vector>

#include "base/types.hpp"
#include "base/worker_pool.hpp"
#include "optim/simd.hpp"

namespace gossamer {

class SparseLayout {
 public:
  /// Elements.
  static constexpr std::int64_t kPart = 4096;

  /// Makes the layout for blocks of float32 or float64, with 0 < fraction <= 1. A part sends at
  /// least one element.
  SparseLayout(double fraction, DType dtype) : fraction_(fraction), dtype_(dtype) {}
  /// Adds the elements [offset, offset + numel) of a block.
  void add(std::int64_t offset, std::int64_t numel);
  /// Bytes of a message.
  [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_; }

  /// message <- the largest elements of x - from. `message` has num_bytes() elements of uint8 and
  /// begins at a multiple of 8 bytes; its unused bytes stay as they are. Threads of `pool` share
  /// the work; null: one thread does it.
  void encode(const Block& message, const ConstBlock& x, const ConstBlock& from, SimdPath simd,
              WorkerPool* pool = nullptr) const;
  /// x += weight * (what the message says). Throws CommError when the message names elements that
  /// its part does not have.
  void add_to(const Block& x, const ConstBlock& message, double weight) const;

 private:
  struct Part {
    std::int64_t offset = 0;
    std::int64_t numel = 0;
    /// Elements that are sent.
    std::int64_t count = 0;
    /// Byte in the message.
    std::int64_t begin = 0;
  };

  double fraction_;
  DType dtype_;
  std::vector<Part> parts_;
  std::int64_t num_bytes_ = 0;
};

}  // namespace gossamer
