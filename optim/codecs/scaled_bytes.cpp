#include "optim/codecs/scaled_bytes.hpp"

#include <algorithm>
#include <cstring>

#include "optim/codecs/nibbles.hpp"
#include "optim/codecs/scaled_numbers.hpp"

namespace gossamer::internal {
namespace {

constexpr std::int64_t kPart = Codec::kSummandPart;

template <class T, int kBits>
struct EncodeScaled {
  const T* from;
  std::uint8_t* to;
  std::int64_t numel;

  [[gnu::always_inline]] void operator()() const {
    std::uint8_t* part = to;
    for (std::int64_t first = 0; first < numel; first += kPart) {
      const std::int64_t count = std::min(kPart, numel - first);
      encode_part(from + first, part, count);
      part += kScaleBytes + number_bytes<kBits>(count);
    }
  }

  [[gnu::always_inline]] static void encode_part(const T* x, std::uint8_t* part,
                                                 std::int64_t count) {
    std::int32_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t size = float_size(x[i]);
      largest = size > largest ? size : largest;
    }
    const Scale scale = scale_of<kBits>(largest);
    std::memcpy(part, &scale.step, sizeof(scale.step));
    std::uint8_t* const q = part + kScaleBytes;
    if constexpr (kBits == 8) {
      write_numbers(x, count, scale.inverse, q);
    } else {
      Numbers numbers;
      write_numbers(x, count, scale.inverse, numbers.data());
      pack_nibbles(numbers.data(), count, q);
    }
  }

  [[gnu::always_inline]] static void write_numbers(const T* x, std::int64_t count, float inverse,
                                                   std::uint8_t* q) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      q[i] = scaled_number(static_cast<float>(x[i]), inverse);
    }
  }
};

template <class T, int kBits>
struct AddScaled {
  T* x;
  const std::uint8_t* from;
  std::int64_t numel;

  [[gnu::always_inline]] void operator()() const {
    const std::uint8_t* part = from;
    for (std::int64_t first = 0; first < numel; first += kPart) {
      const std::int64_t count = std::min(kPart, numel - first);
      add_part(x + first, part, count);
      part += kScaleBytes + number_bytes<kBits>(count);
    }
  }

  [[gnu::always_inline]] static void add_part(T* sum, const std::uint8_t* part,
                                              std::int64_t count) {
    float step = 0.0F;
    std::memcpy(&step, part, sizeof(step));
    const T scale = static_cast<T>(step);
    const std::uint8_t* const q = part + kScaleBytes;
    if constexpr (kBits == 8) {
      add_numbers(sum, scale, q, count);
    } else {
      Numbers numbers;
      unpack_nibbles(q, count, numbers.data());
      add_numbers(sum, scale, numbers.data(), count);
    }
  }

  [[gnu::always_inline]] static void add_numbers(T* sum, T scale, const std::uint8_t* q,
                                                 std::int64_t count) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) sum[i] += scaled_value<kBits>(q[i], scale);
  }
};

}  // namespace

template <int kBits>
std::int64_t scaled_bytes(std::int64_t numel) {
  return numel / kPart * (kScaleBytes + number_bytes<kBits>(kPart)) +
         (numel % kPart == 0 ? 0 : kScaleBytes + number_bytes<kBits>(numel % kPart));
}

template <int kBits>
void encode_scaled(const Block& to, const ConstBlock& x, SimdPath simd) {
  auto* const bytes = static_cast<std::uint8_t*>(to.data);
  if (x.dtype == DType::kFloat32) {
    const auto* const values = static_cast<const float*>(x.data);
    return run_on(simd, EncodeScaled<float, kBits>{values, bytes, x.numel});
  }
  require_dtype(x.dtype, DType::kFloat64);
  const auto* const values = static_cast<const double*>(x.data);
  run_on(simd, EncodeScaled<double, kBits>{values, bytes, x.numel});
}

template <int kBits>
void add_scaled(const Block& x, const ConstBlock& from, SimdPath simd) {
  const auto* const bytes = static_cast<const std::uint8_t*>(from.data);
  if (x.dtype == DType::kFloat32) {
    return run_on(simd, AddScaled<float, kBits>{static_cast<float*>(x.data), bytes, x.numel});
  }
  require_dtype(x.dtype, DType::kFloat64);
  run_on(simd, AddScaled<double, kBits>{static_cast<double*>(x.data), bytes, x.numel});
}

template std::int64_t scaled_bytes<8>(std::int64_t);
template std::int64_t scaled_bytes<4>(std::int64_t);
template void encode_scaled<8>(const Block&, const ConstBlock&, SimdPath);
template void encode_scaled<4>(const Block&, const ConstBlock&, SimdPath);
template void add_scaled<8>(const Block&, const ConstBlock&, SimdPath);
template void add_scaled<4>(const Block&, const ConstBlock&, SimdPath);

}  // namespace gossamer::internal
