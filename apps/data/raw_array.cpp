#include "apps/data/raw_array.hpp"

#include <cstring>
#include <functional>
#include <string_view>

#include "base/bfloat16.hpp"
#include "base/error.hpp"
#include "base/float16.hpp"
#include "base/text.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer::apps {
namespace {

/// `number`: what an element stands for, as a number that has a conversion to `To`.
template <class To, class From, class Number = std::identity>
void convert(const std::vector<std::byte>& bytes, std::vector<To>& out, Number number = {}) {
  out.resize(bytes.size() / sizeof(From));
  for (std::size_t i = 0; i < out.size(); ++i) {
    // The bytes may lie anywhere.
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    out[i] = static_cast<To>(number(value));
  }
}

/// Converts from the integer types; returns false for another type.
template <class To>
bool convert_integers(const RawArray& array, std::vector<To>& out) {
  if (array.dtype == "U8") {
    convert<To, std::uint8_t>(array.bytes, out);
  } else if (array.dtype == "I8") {
    convert<To, std::int8_t>(array.bytes, out);
  } else if (array.dtype == "U16") {
    convert<To, std::uint16_t>(array.bytes, out);
  } else if (array.dtype == "I16") {
    convert<To, std::int16_t>(array.bytes, out);
  } else if (array.dtype == "U32") {
    convert<To, std::uint32_t>(array.bytes, out);
  } else if (array.dtype == "I32") {
    convert<To, std::int32_t>(array.bytes, out);
  } else if (array.dtype == "I64") {
    convert<To, std::int64_t>(array.bytes, out);
  } else {
    return false;
  }
  return true;
}

constexpr std::string_view kIntegers = "int8, uint8, int16, uint16, int32, uint32, int64";

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
  } else if (dtype == "F16") {
    convert<float, Float16>(bytes, out, [](Float16 value) { return widened(value); });
  } else if (dtype == "BF16") {
    convert<float, BFloat16>(bytes, out, [](BFloat16 value) { return widened(value); });
  } else if (!convert_integers(*this, out)) {
    fail_type(*this, concat("float16, bfloat16, float32, float64, ", kIntegers));
  }
  return out;
}

std::vector<std::int64_t> RawArray::integers() const {
  std::vector<std::int64_t> out;
  if (!convert_integers(*this, out)) fail_type(*this, kIntegers);
  return out;
}

std::vector<std::uint8_t> RawArray::octets() const {
  std::vector<std::uint8_t> out;
  if (dtype != "U8") fail_type(*this, "uint8");
  convert<std::uint8_t, std::uint8_t>(bytes, out);
  return out;
}

}  // namespace gossamer::apps
