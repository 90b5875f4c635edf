#include "optim/codecs/scaled_bytes.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace gossamer::internal {
namespace {

constexpr std::int64_t kPart = Codec::kSummandPart;
constexpr std::int64_t kScaleBytes = sizeof(float);
constexpr float kMostSteps = 127.0F;
constexpr std::int32_t kInfinity = 0x7f80'0000;
/// Adding it rounds a float of at most 127 to a whole number, which then stands in the last byte.
constexpr float kRounder = 0x1.8p23F;

/// A scale, and what values are multiplied by.
struct Scale {
  float step = 0.0F;
  float inverse = 0.0F;
};

/// `largest`: the bits of the largest |x|. As integers, infinity and NaN are above all numbers.
[[gnu::always_inline]] inline Scale scale_of(std::int32_t largest) {
  if (largest >= kInfinity) return {.step = std::numeric_limits<float>::quiet_NaN()};
  const float step = std::bit_cast<float>(largest) / kMostSteps;
  // The inverse of a smaller number may be infinite.
  if (step < std::numeric_limits<float>::min()) return {};
  return {.step = step, .inverse = 1.0F / step};
}

template <class T>
struct EncodeScaled {
  const T* from;
  std::uint8_t* to;
  std::int64_t numel;

  [[gnu::always_inline]] void operator()() const {
    std::uint8_t* part = to;
    for (std::int64_t first = 0; first < numel; first += kPart) {
      const std::int64_t count = std::min(kPart, numel - first);
      encode_part(from + first, part, count);
      part += kScaleBytes + count;
    }
  }

  [[gnu::always_inline]] static void encode_part(const T* x, std::uint8_t* part,
                                                 std::int64_t count) {
    std::int32_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x[i])) & 0x7fff'ffffU;
      const auto size = static_cast<std::int32_t>(bits);
      largest = size > largest ? size : largest;
    }
    const Scale scale = scale_of(largest);
    std::memcpy(part, &scale.step, sizeof(scale.step));
    std::uint8_t* const q = part + kScaleBytes;
    const float inverse = scale.inverse;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      const float steps = static_cast<float>(x[i]) * inverse + kRounder;
      q[i] = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(steps));
    }
  }
};

template <class T>
struct AddScaled {
  T* x;
  const std::uint8_t* from;
  std::int64_t numel;

  [[gnu::always_inline]] void operator()() const {
    const std::uint8_t* part = from;
    for (std::int64_t first = 0; first < numel; first += kPart) {
      const std::int64_t count = std::min(kPart, numel - first);
      add_part(x + first, part, count);
      part += kScaleBytes + count;
    }
  }

  [[gnu::always_inline]] static void add_part(T* sum, const std::uint8_t* part,
                                              std::int64_t count) {
    float step = 0.0F;
    std::memcpy(&step, part, sizeof(step));
    const T scale = static_cast<T>(step);
    const std::uint8_t* const q = part + kScaleBytes;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      sum[i] += scale * static_cast<T>(static_cast<std::int8_t>(q[i]));
    }
  }
};

}  // namespace

std::int64_t scaled_bytes(std::int64_t numel) {
  return numel + (numel + kPart - 1) / kPart * kScaleBytes;
}

void encode_scaled(const Block& to, const ConstBlock& x, SimdPath simd) {
  auto* const bytes = static_cast<std::uint8_t*>(to.data);
  if (x.dtype == DType::kFloat32) {
    const auto* const values = static_cast<const float*>(x.data);
    return run_on(simd, EncodeScaled<float>{values, bytes, x.numel});
  }
  require_dtype(x.dtype, DType::kFloat64);
  const auto* const values = static_cast<const double*>(x.data);
  run_on(simd, EncodeScaled<double>{values, bytes, x.numel});
}

void add_scaled(const Block& x, const ConstBlock& from, SimdPath simd) {
  const auto* const bytes = static_cast<const std::uint8_t*>(from.data);
  if (x.dtype == DType::kFloat32) {
    return run_on(simd, AddScaled<float>{static_cast<float*>(x.data), bytes, x.numel});
  }
  require_dtype(x.dtype, DType::kFloat64);
  run_on(simd, AddScaled<double>{static_cast<double*>(x.data), bytes, x.numel});
}

}  // namespace gossamer::internal
