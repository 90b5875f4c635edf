#pragma once
// Reads arrays of float32 in numpy's .npy format, versions 1.0 and 2.0 (numpy.lib.format). A file
// has a magic number, a header that is a Python dictionary, then the elements in C order, little
// endian.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace gossamer::apps {

struct NpyArray {
  std::vector<std::int64_t> shape;
  std::vector<float> values;

  /// The elements under the given leading indices. Throws std::logic_error when there are none.
  [[nodiscard]] std::span<const float> row(std::initializer_list<std::int64_t> leading) const;
};

/// Throws DataError, which says what is wrong with which file.
NpyArray read_npy(const std::string& path);

}  // namespace gossamer::apps
