#pragma once
// Reads one IDX file, the format of MNIST. The file begins with a header of big-endian numbers: two
// zero bytes, the element type, the number of dimensions, then each dimension in four bytes. The
// elements follow. Here elements are bytes, and the first dimension counts the items (images or
// labels).
//
// Protocol: open the file, append() or skip() all items in order, then finish(). Memory is
// allocated only for items that append() has really found in the file, never for what the header
// claims.
//
// Errors: DataError with file and byte offset. Not thread safe.

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "apps/data/packed_file.hpp"

namespace gossamer::apps {

class IdxFile {
 public:
  /// Opens the file and checks its header. 3 `dimensions` mean images (items, rows, columns), 1
  /// means labels.
  IdxFile(const std::filesystem::path& path, std::int64_t dimensions);

  /// The dimensions, each > 0; their product fits into 64 bits.
  [[nodiscard]] std::span<const std::int64_t> shape() const { return shape_; }
  [[nodiscard]] std::int64_t items() const { return shape_.front(); }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

  /// Appends the bytes of the next `count` items to `out`. Throws std::logic_error if fewer are
  /// left.
  void append(std::int64_t count, std::vector<std::uint8_t>& out);
  void skip(std::int64_t count);
  /// Throws DataError when bytes follow the last item, or when the checksum of a gzip file is
  /// wrong. Throws std::logic_error when items are left.
  void finish();

 private:
  void read_header(std::int64_t dimensions);
  void check_type(std::span<const std::uint8_t> magic, std::int64_t dimensions) const;
  std::int64_t take(std::int64_t count);
  void fill(std::span<std::uint8_t> out);

  PackedFile file_;
  std::vector<std::int64_t> shape_;
  std::int64_t item_bytes_ = 1;
  std::int64_t items_left_ = 0;
};

}  // namespace gossamer::apps
