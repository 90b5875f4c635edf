// Modulo quantisation (Lu and De Sa, "Moniqua: Modulo Quantized Communication in Decentralized
// SGD", ICML 2020). All ranks agree on a grid with the step 2^e. A rank sends, for every value, the
// number of its grid point modulo 256. The receiver knows its own value, so it needs only the
// difference of the two numbers, and it finds this difference as long as the values lie at most
// 127 steps apart.
//
//   q(x) = floor(x / 2^e + r) mod 256
//   heard - own = 2^e * (q(heard) - q(own)), as a signed byte
//
// r is a pseudo-random number in [0, 1) that is the same on all ranks: it depends on the round and
// on the place of the value alone. So the expected difference is the true one, and equal values
// have no difference. A difference of -128 counts as 0, because +128 looks the same: then the
// differences of a pair are always opposite numbers, and the mean of the pair stays, even where
// values lie too far apart.
//
// Sums over ranks are encoded without a grid (scaled_bytes.hpp).

#include <cmath>

#include "optim/codecs/scaled_bytes.hpp"

namespace gossamer {
namespace {

/// From here on a difference uses the upper half of the range.
constexpr int kWide = 64;

/// A number in [0, 1) with 24 bits, from the seed of a round and the place of a value.
[[gnu::always_inline]] inline float dither(std::uint32_t seed, std::uint32_t place) {
  std::uint32_t h = place * 0x9e37'79b1U + seed;
  h ^= h >> 16U;
  h *= 0x85eb'ca6bU;
  h ^= h >> 13U;
  h *= 0xc2b2'ae35U;
  h ^= h >> 16U;
  return static_cast<float>(static_cast<std::int32_t>(h >> 8U)) * 0x1p-24F;
}

/// Spreads the bits of a round's number.
std::uint32_t seed_of(const Grid& grid) {
  std::uint64_t h = (grid.seed + 1) * 0x9e37'79b9'7f4a'7c15ULL;
  h ^= h >> 29U;
  return static_cast<std::uint32_t>(h >> 16U);
}

/// The size of a difference, at most 128.
[[gnu::always_inline]] inline std::uint8_t steps_between(std::uint8_t a, std::uint8_t b) {
  const auto up = static_cast<std::uint8_t>(a - b);
  const auto down = static_cast<std::uint8_t>(b - a);
  return up < down ? up : down;
}

template <class T>
struct EncodeOnGrid {
  const T* from;
  std::uint8_t* to;
  std::int64_t numel;
  T scale;
  std::uint32_t seed;
  std::uint32_t place;

  [[gnu::always_inline]] void operator()() const {
    const T* const x = from;
    std::uint8_t* const q = to;
    const std::int64_t count = numel;
    const T c = scale;
    const std::uint32_t s = seed;
    const std::uint32_t p = place;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      const T r = static_cast<T>(dither(s, p + static_cast<std::uint32_t>(i)));
      const T point = std::floor(x[i] * c + r);
      // Exact, because both numbers are whole and the result is small.
      const T rest = point - T{256} * std::floor(point * T{1.0 / 256.0});
      // Values that are not finite are sent as 0.
      const T safe = rest >= T{0} && rest < T{256} ? rest : T{0};
      q[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(safe));
    }
  }
};

template <class T>
struct DifferenceOnGrid {
  T* x;
  T factor;
  const std::uint8_t* heard;
  const std::uint8_t* own;
  std::int64_t numel;
  DifferenceRange* range;

  [[gnu::always_inline]] void operator()() const {
    T* const sum = x;
    const std::uint8_t* const theirs = heard;
    const std::uint8_t* const ours = own;
    const std::int64_t count = numel;
    const T c = factor;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      const auto wrapped = static_cast<std::int8_t>(theirs[i] - ours[i]);
      const std::int8_t steps = wrapped == -128 ? std::int8_t{0} : wrapped;
      sum[i] += c * static_cast<T>(steps);
    }
    // Loops of their own, because the compiler vectorises sums of floats and maxima of bytes, but
    // not both together.
    std::uint8_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint8_t size = steps_between(theirs[i], ours[i]);
      largest = size > largest ? size : largest;
    }
    std::int64_t num_wide = 0;
    if (largest >= kWide) {
      for (std::int64_t i = 0; i < count; ++i) {
        num_wide += steps_between(theirs[i], ours[i]) >= kWide ? 1 : 0;
      }
    }
    range->largest_steps = largest;
    range->num_wide = num_wide;
  }
};

class Int8Codec : public Codec {
 public:
  [[nodiscard]] std::string_view name() const override { return "int8"; }
  [[nodiscard]] std::int64_t bytes_per_element() const override { return 1; }
  [[nodiscard]] bool needs_grid() const override { return true; }

  void encode(const Block& to, const ConstBlock& x, const Grid& grid,
              SimdPath simd) const override {
    require_encoded(*this, to, x.numel);
    auto* const q = static_cast<std::uint8_t*>(to.data);
    const auto place = static_cast<std::uint32_t>(grid.first);
    const double scale = std::ldexp(1.0, -grid.exponent);
    if (x.dtype == DType::kFloat32) {
      const auto* const values = static_cast<const float*>(x.data);
      return run_on(simd, EncodeOnGrid<float>{values, q, x.numel, static_cast<float>(scale),
                                              seed_of(grid), place});
    }
    require_dtype(x.dtype, DType::kFloat64);
    const auto* const values = static_cast<const double*>(x.data);
    run_on(simd, EncodeOnGrid<double>{values, q, x.numel, scale, seed_of(grid), place});
  }

  DifferenceRange add_difference(const Block& x, const Inbox& heard, const ConstBlock& own,
                                 const Grid& grid, SimdPath simd) const override {
    require_encoded(*this, heard.block, x.numel);
    require_encoded(*this, own, x.numel);
    const auto* const theirs = static_cast<const std::uint8_t*>(heard.block.data);
    const auto* const ours = static_cast<const std::uint8_t*>(own.data);
    const double factor = heard.weight * std::ldexp(1.0, grid.exponent);
    DifferenceRange range;
    if (x.dtype == DType::kFloat32) {
      run_on(simd, DifferenceOnGrid<float>{static_cast<float*>(x.data), static_cast<float>(factor),
                                           theirs, ours, x.numel, &range});
      return range;
    }
    require_dtype(x.dtype, DType::kFloat64);
    run_on(simd, DifferenceOnGrid<double>{static_cast<double*>(x.data), factor, theirs, ours,
                                          x.numel, &range});
    return range;
  }

  [[nodiscard]] std::int64_t summand_bytes(std::int64_t numel) const override {
    return internal::scaled_bytes(numel);
  }
  void encode_summand(const Block& to, const ConstBlock& x, SimdPath simd) const override {
    require_summand(*this, to, x.numel);
    internal::encode_scaled(to, x, simd);
  }
  void add_summand(const Block& x, const ConstBlock& summand, SimdPath simd) const override {
    require_summand(*this, summand, x.numel);
    internal::add_scaled(x, summand, simd);
  }
};

}  // namespace

const Codec& int8_codec() {
  static const Int8Codec kCodec;
  return kCodec;
}

}  // namespace gossamer
