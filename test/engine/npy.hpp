#pragma once
// Reads arrays of float32 in numpy's .npy format, version 1.0: a magic number, a header that is a
// Python dictionary, the elements.

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gossamer {

struct NpyArray {
  std::vector<std::int64_t> shape;
  std::vector<float> values;

  /// The elements under fixed leading indices.
  [[nodiscard]] std::span<const float> row(const std::vector<std::int64_t>& leading) const {
    std::int64_t length = static_cast<std::int64_t>(values.size());
    std::int64_t begin = 0;
    for (std::size_t axis = 0; axis < leading.size(); ++axis) {
      if (leading[axis] < 0 || leading[axis] >= shape.at(axis)) {
        throw std::out_of_range("NpyArray::row: no such row");
      }
      length /= shape[axis];
      begin += leading[axis] * length;
    }
    return std::span(values).subspan(static_cast<std::size_t>(begin),
                                     static_cast<std::size_t>(length));
  }
};

namespace internal {

inline std::vector<std::int64_t> parse_npy_shape(const std::string& header) {
  const std::size_t begin = header.find('(');
  const std::size_t end = header.find(')');
  if (begin == std::string::npos || end == std::string::npos) {
    throw std::runtime_error("npy: no shape in " + header);
  }
  std::vector<std::int64_t> shape;
  std::istringstream list(header.substr(begin + 1, end - begin - 1));
  for (std::string item; std::getline(list, item, ',');) {
    if (item.find_first_not_of(' ') != std::string::npos) shape.push_back(std::stoll(item));
  }
  return shape;
}

}  // namespace internal

inline NpyArray read_npy(const std::filesystem::path& path) {
  static_assert(std::endian::native == std::endian::little);
  constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
  std::ifstream file(path, std::ios::binary);
  std::string start(10, '\0');
  if (!file.read(start.data(), 10) || !start.starts_with(kMagic)) {
    throw std::runtime_error("npy: " + path.string() + " is not .npy version 1.0");
  }
  const auto low = static_cast<unsigned char>(start[8]);
  const auto high = static_cast<unsigned char>(start[9]);
  std::string header(static_cast<std::size_t>(low + 256 * high), '\0');
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  if (header.find("'<f4'") == std::string::npos ||
      header.find("'fortran_order': False") == std::string::npos) {
    throw std::runtime_error("npy: " + path.string() + " is not float32 in C order");
  }
  NpyArray array{.shape = internal::parse_npy_shape(header), .values = {}};
  array.values.resize(static_cast<std::size_t>(std::accumulate(
      array.shape.begin(), array.shape.end(), std::int64_t{1}, std::multiplies<>())));
  const auto bytes = static_cast<std::streamsize>(array.values.size() * sizeof(float));
  if (!file.read(reinterpret_cast<char*>(array.values.data()), bytes)) {
    throw std::runtime_error("npy: " + path.string() + " ends too early");
  }
  return array;
}

}  // namespace gossamer
