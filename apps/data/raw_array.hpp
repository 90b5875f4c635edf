#pragma once
// An array as a file has it, and its conversion into the types that samples need.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gossamer::apps {

/// Errors: DataError with the place.
struct RawArray {
  /// The file, and the name of the array if the file has several; for messages.
  std::string place = {};
  /// As safetensors spells it: F16, BF16, F32, F64, or I or U with 8, 16, 32 (I also 64) bits.
  /// Other types can be read, not converted.
  std::string dtype = {};
  std::vector<std::int64_t> shape = {};
  /// The elements, row by row.
  std::vector<std::byte> bytes = {};

  /// The number of bytes that type and shape ask for. Throws DataError for more than 2^62.
  [[nodiscard]] std::int64_t checked_num_bytes() const;
  [[nodiscard]] bool is_floating() const { return dtype.find('F') != std::string::npos; }
  /// The size of the first dimension, and the number of elements of one of its rows.
  [[nodiscard]] std::int64_t num_rows() const { return shape.empty() ? 0 : shape.front(); }
  [[nodiscard]] std::int64_t row_numel() const;

  /// The elements as float32. Throws DataError for a type that cannot be converted.
  [[nodiscard]] std::vector<float> floats() const;
  /// The elements, which are integers. Throws DataError for another type.
  [[nodiscard]] std::vector<std::int64_t> integers() const;
  /// The elements, which are U8.
  [[nodiscard]] std::vector<std::uint8_t> octets() const;
};

}  // namespace gossamer::apps
