#include "apps/data/raw_array.hpp"

#include <cstring>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer::apps {
namespace {

template <class To, class From>
void convert(const std::vector<std::byte>& bytes, std::vector<To>& out) {
  out.resize(bytes.size() / sizeof(From));
  for (std::size_t i = 0; i < out.size(); ++i) {
    // The bytes may lie anywhere.
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    out[i] = static_cast<To>(value);
  }
}

/// Converts from the integer types; returns false for another type.
template <class To>
bool convert_integers(const RawArray& array, std::vector<To>& out) {
  if (array.dtype == "U8") {
    convert<To, std::uint8_t>(array.bytes, out);
  } else if (array.dtype == "I32") {
    convert<To, std::int32_t>(array.bytes, out);
  } else if (array.dtype == "I64") {
    convert<To, std::int64_t>(array.bytes, out);
  } else {
    return false;
  }
  return true;
}

[[noreturn]] void fail_type(const RawArray& array, std::string_view allowed) {
  throw DataError(concat(array.place, ": elements of type ", array.dtype, ", allowed: ", allowed));
}

}  // namespace

std::int64_t RawArray::checked_num_bytes() const {
  constexpr std::int64_t kMost = std::int64_t{1} << 62U;
  std::int64_t count = bytes_of_element(dtype);
  bool is_empty = false;
  // An array without elements must not claim huge rows either.
  for (const std::int64_t size : shape) {
    is_empty = is_empty || size == 0;
    if (size != 0 && count > kMost / size) {
      throw DataError(concat(place, ": claims more elements than memory could hold"));
    }
    count *= size == 0 ? 1 : size;
  }
  return is_empty ? 0 : count;
}

std::int64_t RawArray::row_numel() const {
  std::int64_t count = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) count *= shape[i];
  return count;
}

std::vector<float> RawArray::floats() const {
  std::vector<float> out;
  if (dtype == "F32") {
    convert<float, float>(bytes, out);
  } else if (dtype == "F64") {
    convert<float, double>(bytes, out);
  } else if (!convert_integers(*this, out)) {
    fail_type(*this, "float32, float64, uint8, int32, int64");
  }
  return out;
}

std::vector<std::int64_t> RawArray::integers() const {
  std::vector<std::int64_t> out;
  if (!convert_integers(*this, out)) fail_type(*this, "uint8, int32, int64");
  return out;
}

std::vector<std::uint8_t> RawArray::octets() const {
  std::vector<std::uint8_t> out;
  if (dtype != "U8") fail_type(*this, "uint8");
  convert<std::uint8_t, std::uint8_t>(bytes, out);
  return out;
}

}  // namespace gossamer::apps
