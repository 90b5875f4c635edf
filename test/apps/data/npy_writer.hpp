#pragma once
// Writes .npy files, for tests.

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "apps/data/npy.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

/// Version 1.0; the header ends at a multiple of 64 bytes, so that the elements are aligned. `type`
/// is as numpy spells it, `<f4`.
template <class Number>
void write_npy(const std::string& path, std::string_view type,
               const std::vector<std::int64_t>& shape, const std::vector<Number>& values,
               bool fortran_order = false) {
  constexpr std::string_view kStart("\x93NUMPY\x01\x00", 8);
  std::string header =
      concat("{'descr': '", type, "', 'fortran_order': ", fortran_order ? "True" : "False",
             ", 'shape': (", join(shape, ", "), shape.size() == 1 ? "," : "", "), }");
  header.append(64 - (kStart.size() + 2 + header.size() + 1) % 64, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << kStart << static_cast<char>(header.size() % 256) << static_cast<char>(header.size() / 256)
       << header;
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(Number)));
}

inline void write_npy(const std::string& path, const NpyArray& array) {
  write_npy(path, "<f4", array.shape, array.values);
}

}  // namespace gossamer::apps
