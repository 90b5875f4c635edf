#include "apps/data/npy.hpp"

#include <array>
#include <bit>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer::apps {
namespace {

static_assert(std::endian::native == std::endian::little, ".npy files are little endian");

constexpr std::string_view kMagic = "\x93NUMPY";

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  throw DataError(concat(path, ": ", what));
}

std::string read_bytes(std::ifstream& file, const std::string& path, std::size_t count) {
  std::string bytes(count, '\0');
  if (!file.read(bytes.data(), static_cast<std::streamsize>(count))) {
    fail(path, "ends inside its header; it is not a .npy file, or was cut off");
  }
  return bytes;
}

std::uint32_t little_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value * 256U + static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

std::string read_header(std::ifstream& file, const std::string& path) {
  const std::string start = read_bytes(file, path, kMagic.size() + 2);
  if (!start.starts_with(kMagic)) fail(path, "is not a .npy file");
  const char version = start[kMagic.size()];
  if (version != 1 && version != 2) fail(path, "is .npy of another version, allowed: 1.0, 2.0");
  const std::uint32_t length = little_endian(read_bytes(file, path, version == 1 ? 2 : 4));
  if (length > (1U << 20U)) fail(path, "has a header of more than 1 MiB; it is damaged");
  return read_bytes(file, path, length);
}

std::vector<std::int64_t> shape_of(std::string_view header, const std::string& path) {
  const std::size_t key = header.find("'shape'");
  const std::size_t begin = key == header.npos ? key : header.find('(', key);
  const std::size_t end = begin == header.npos ? begin : header.find(')', begin);
  if (end == header.npos) fail(path, "has no shape in its header");
  std::vector<std::int64_t> shape;
  std::string_view list = header.substr(begin + 1, end - begin - 1);
  while (true) {
    const std::size_t digit = list.find_first_not_of(" ,");
    if (digit == list.npos) return shape;
    list.remove_prefix(digit);
    std::int64_t size = 0;
    const auto [stop, error] = std::from_chars(list.data(), list.data() + list.size(), size);
    if (error != std::errc() || size < 0) fail(path, "has no valid shape in its header");
    shape.push_back(size);
    list.remove_prefix(static_cast<std::size_t>(stop - list.data()));
  }
}

/// The type as RawArray spells it; empty if it has none.
std::string dtype_of(std::string_view header) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kTypes = {{
      {"'<f2'", "F16"},
      {"'<f4'", "F32"},
      {"'<f8'", "F64"},
      {"'|i1'", "I8"},
      {"'|u1'", "U8"},
      {"'<i2'", "I16"},
      {"'<u2'", "U16"},
      {"'<u4'", "U32"},
      {"'<i4'", "I32"},
      {"'<i8'", "I64"},
  }};
  for (const auto& [numpy, name] : kTypes) {
    if (header.find(numpy) != header.npos) return std::string(name);
  }
  return "";
}

/// The elements row by row of an array whose first index runs fastest in memory.
std::vector<std::byte> row_by_row(const RawArray& array) {
  const std::int64_t bytes = bytes_of_element(array.dtype);
  const std::size_t num_axes = array.shape.size();
  std::vector<std::int64_t> steps(num_axes, bytes);
  for (std::size_t axis = 1; axis < num_axes; ++axis) {
    steps[axis] = steps[axis - 1] * array.shape[axis - 1];
  }
  std::vector<std::byte> rows;
  rows.reserve(array.bytes.size());
  std::vector<std::int64_t> index(num_axes);
  std::int64_t from = 0;
  while (rows.size() < array.bytes.size()) {
    const auto element = array.bytes.begin() + from;
    rows.insert(rows.end(), element, element + bytes);
    for (std::size_t axis = num_axes; axis-- > 0;) {
      from += steps[axis];
      if (++index[axis] < array.shape[axis]) break;
      from -= steps[axis] * std::exchange(index[axis], 0);
    }
  }
  return rows;
}

}  // namespace

std::span<const float> NpyArray::row(std::initializer_list<std::int64_t> leading) const {
  auto length = static_cast<std::int64_t>(values.size());
  std::int64_t begin = 0;
  std::size_t axis = 0;
  for (const std::int64_t index : leading) {
    if (axis >= shape.size() || index < 0 || index >= shape[axis]) {
      throw std::logic_error("NpyArray::row: no such row");
    }
    length /= shape[axis++];
    begin += index * length;
  }
  return std::span(values).subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(length));
}

RawArray read_raw_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be opened");
  const std::string header = read_header(file, path);
  RawArray array{.place = path, .dtype = dtype_of(header)};
  if (array.dtype.empty()) {
    fail(path, concat("is not an array of a type that can be read, allowed: float16, float32, ",
                      "float64, int8, uint8, int16, uint16, int32, uint32, int64, little endian, ",
                      "as a.astype('<f4')"));
  }
  const bool has_columns = header.find("'fortran_order': True") != header.npos;
  if (!has_columns && header.find("'fortran_order': False") == header.npos) {
    fail(path, "has no fortran_order in its header");
  }
  array.shape = shape_of(header, path);
  // Compare sizes before allocating memory: a damaged header may claim anything.
  const auto begin = static_cast<std::int64_t>(file.tellg());
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path)) - begin;
  const std::int64_t needed = array.checked_num_bytes();
  if (size != needed) {
    fail(path,
         concat("byte ", begin, ": ", needed / bytes_of_element(array.dtype), " elements need ",
                needed, " bytes, ", size, " follow; the file was cut off or damaged"));
  }
  array.bytes.resize(static_cast<std::size_t>(size));
  if (!file.read(reinterpret_cast<char*>(array.bytes.data()), size)) {
    fail(path, "cannot be read to its end");
  }
  if (has_columns) array.bytes = row_by_row(array);
  return array;
}

NpyArray read_npy(const std::string& path) {
  RawArray raw = read_raw_npy(path);
  if (raw.dtype != "F32") {
    fail(path, "is not float32; save a.astype('<f4')");
  }
  return {.shape = raw.shape, .values = raw.floats()};
}

}  // namespace gossamer::apps
