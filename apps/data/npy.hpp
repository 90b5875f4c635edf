#pragma once
// Reads arrays in numpy's .npy format, versions 1.0 and 2.0 (numpy.lib.format). A file has a magic
// number, a header that is a Python dictionary, then the elements, little endian, in C or Fortran
// order. The arrays that are returned are in C order.
//
// Errors: DataError, which says what is wrong with which file.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "apps/data/raw_array.hpp"

namespace gossamer::apps {

struct NpyArray {
  std::vector<std::int64_t> shape;
  std::vector<float> values;

  /// The elements under the given leading indices. Throws std::logic_error when there are none.
  [[nodiscard]] std::span<const float> row(std::initializer_list<std::int64_t> leading) const;
};

/// Reads an array of any type that RawArray has.
RawArray read_raw_npy(const std::string& path);
/// Reads an array of float32.
NpyArray read_npy(const std::string& path);

}  // namespace gossamer::apps
