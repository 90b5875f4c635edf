#include "apps/data/raw_array.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/bfloat16.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer::apps {
namespace {

/// A float16 in memory: 1 bit of sign, 5 of exponent, 10 of fraction.
struct Float16 {
  std::uint16_t bits;
  explicit operator float() const {
    const int exponent = bits >> 10U & 31U;
    const int fraction = bits & 1023U;
    float size = 0.0F;
    if (exponent == 31) {
      using Limits = std::numeric_limits<float>;
      size = fraction == 0 ? Limits::infinity() : Limits::quiet_NaN();
    } else {
      // Numbers with exponent 0 have no leading 1.
      size = static_cast<float>(
          std::ldexp(exponent == 0 ? fraction : fraction + 1024, std::max(exponent, 1) - 25));
    }
    return std::copysign(size, (bits & 0x8000U) != 0 ? -1.0F : 1.0F);
  }
};

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
    convert<float, Float16>(bytes, out);
  } else if (dtype == "BF16") {
    std::vector<BFloat16> values(bytes.size() / sizeof(BFloat16));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(BFloat16));
    for (const BFloat16 value : values) out.push_back(widened(value));
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
