#include "apps/lab/replay/npy.hpp"

#include <bit>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"

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

std::uint64_t numel_of(const std::vector<std::int64_t>& shape, const std::string& path) {
  std::uint64_t numel = 1;
  for (const std::int64_t size : shape) {
    const auto factor = static_cast<std::uint64_t>(size);
    if (factor != 0 && numel > (std::uint64_t{1} << 60U) / factor) {
      fail(path, "claims more elements than memory could hold");
    }
    numel *= factor;
  }
  return numel;
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

NpyArray read_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be opened");
  const std::string header = read_header(file, path);
  if (header.find("'<f4'") == header.npos || header.find("'fortran_order': False") == header.npos) {
    fail(path, "is not float32 in C order; save numpy.ascontiguousarray(a, dtype='<f4')");
  }
  NpyArray array{.shape = shape_of(header, path), .values = {}};
  const std::uint64_t numel = numel_of(array.shape, path);
  // Compare sizes before allocating memory: a damaged header may claim anything.
  const auto begin = static_cast<std::uint64_t>(file.tellg());
  const std::uint64_t size = std::filesystem::file_size(path) - begin;
  if (size != numel * sizeof(float)) {
    fail(path, concat("byte ", begin, ": ", numel, " elements need ", numel * sizeof(float),
                      " bytes, ", size, " follow; the file was cut off or damaged"));
  }
  array.values.resize(numel);
  if (!file.read(reinterpret_cast<char*>(array.values.data()),
                 static_cast<std::streamsize>(numel * sizeof(float)))) {
    fail(path, "cannot be read to its end");
  }
  return array;
}

}  // namespace gossamer::apps
