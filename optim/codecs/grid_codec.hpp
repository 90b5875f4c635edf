#pragma once
// Modulo quantisation (Lu and De Sa, "Moniqua: Modulo Quantized Communication in Decentralized
// SGD", ICML 2020) in b bits. All ranks agree on a grid with the step 2^e. A rank sends, for every
// value, the number of its grid point modulo 2^b. The receiver knows its own value, so it needs
// only the difference of the two numbers. It finds the difference if the values lie at most
// 2^(b-1) - 1 steps apart.
//
//   q(x) = floor(x / 2^e + r) mod 2^b
//   heard - own = 2^e * (q(heard) - q(own)), as a signed number of b bits
//
// The pseudo-random number r lies in [0, 1) and is the same on all ranks, because it depends on the
// round and on the place of the value alone. So the expected difference is the true one, and equal
// values have no difference. A difference of -2^(b-1) counts as 0, because +2^(b-1) looks the same.
// So the differences of a pair are always opposite numbers, and the mean of the pair stays, even
// where values lie too far apart.
//
// Sums over ranks are encoded without a grid (scaled_bytes.hpp).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "optim/codec.hpp"
#include "optim/codecs/grid_points.hpp"
#include "optim/codecs/nibbles.hpp"
#include "optim/codecs/scaled_bytes.hpp"
#include "optim/simd.hpp"

namespace gossamer::internal {

template <class T, int kBits>
struct EncodeOnGrid {
  const T* from;
  std::uint8_t* to;
  std::int64_t numel;
  T scale;
  std::uint32_t seed;
  std::uint32_t place;

  [[gnu::always_inline]] void operator()() const {
    if constexpr (kBits == 8) {
      points(from, numel, place, to);
    } else {
      Numbers numbers;
      for (std::int64_t first = 0; first < numel; first += kPacked) {
        const std::int64_t count = std::min(kPacked, numel - first);
        points(from + first, count, place + static_cast<std::uint32_t>(first), numbers.data());
        pack_nibbles(numbers.data(), count, to + first / 2);
      }
    }
  }

  [[gnu::always_inline]] void points(const T* x, std::int64_t count, std::uint32_t first,
                                     std::uint8_t* q) const {
    const T c = scale;
    const std::uint32_t s = seed;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      const T r = static_cast<T>(dither(s, first + static_cast<std::uint32_t>(i)));
      q[i] = grid_number<kBits>(x[i], c, r);
    }
  }
};

/// Numbers of 4 bits are unpacked to 16 times their size. So one loop takes the differences of
/// both, in signed bytes, and a step is `kUnit`.
template <class T, int kBits>
struct DifferenceOnGrid {
  static constexpr int kUnit = kStepUnit<kBits>;

  T* x;
  T factor;
  const std::uint8_t* heard;
  const std::uint8_t* own;
  std::int64_t numel;
  DifferenceRange* range;

  [[gnu::always_inline]] void operator()() const {
    if constexpr (kBits == 8) {
      add(x, heard, own, numel);
    } else {
      Numbers theirs;
      Numbers ours;
      for (std::int64_t first = 0; first < numel; first += kPacked) {
        const std::int64_t count = std::min(kPacked, numel - first);
        unpack_nibbles(heard + first / 2, count, theirs.data());
        unpack_nibbles(own + first / 2, count, ours.data());
        add(x + first, theirs.data(), ours.data(), count);
      }
    }
  }

  [[gnu::always_inline]] void add(T* sum, const std::uint8_t* theirs, const std::uint8_t* ours,
                                  std::int64_t count) const {
    const T c = factor / T{kUnit};
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      sum[i] += c * static_cast<T>(grid_steps(theirs[i], ours[i]));
    }
    // Loops of their own, because the compiler vectorises sums of floats and maxima of bytes, but
    // not both together.
    std::uint8_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint8_t size = size_of_difference(theirs[i], ours[i]);
      largest = size > largest ? size : largest;
    }
    std::int64_t num_wide = 0;
    if (largest >= kWideDifference) {
      for (std::int64_t i = 0; i < count; ++i) {
        num_wide += size_of_difference(theirs[i], ours[i]) >= kWideDifference ? 1 : 0;
      }
    }
    range->largest_steps = std::max(range->largest_steps, largest / kUnit);
    range->num_wide += num_wide;
  }
};

/// `kBits`: 8 or 4.
template <int kBits>
class GridCodec : public MixingCodec {
 public:
  [[nodiscard]] std::string_view name() const override { return kBits == 8 ? "int8" : "int4"; }
  [[nodiscard]] CodecKernels kernels() const override {
    return kBits == 8 ? CodecKernels::kInt8 : CodecKernels::kInt4;
  }
  [[nodiscard]] std::int64_t encoded_bytes(std::int64_t numel) const override {
    return (numel * kBits + 7) / 8;
  }
  [[nodiscard]] std::int32_t most_steps() const override { return (1 << (kBits - 1)) - 1; }

  void encode(const Block& to, const ConstBlock& x, const Grid& grid,
              SimdPath simd) const override {
    require_encoded(*this, to, x.numel);
    if (x.dtype == DType::kFloat32) return encode_as<float>(to, x, grid, simd);
    require_dtype(x.dtype, DType::kFloat64);
    encode_as<double>(to, x, grid, simd);
  }

  DifferenceRange add_difference(const Block& x, const Inbox& heard, const ConstBlock& own,
                                 const Grid& grid, SimdPath simd) const override {
    require_encoded(*this, heard.block, x.numel);
    require_encoded(*this, own, x.numel);
    if (x.dtype == DType::kFloat32) return add_as<float>(x, heard, own, grid, simd);
    require_dtype(x.dtype, DType::kFloat64);
    return add_as<double>(x, heard, own, grid, simd);
  }

  [[nodiscard]] std::int64_t summand_bytes(std::int64_t numel) const override {
    return scaled_bytes<kBits>(numel);
  }
  void encode_summand(const Block& to, const ConstBlock& x, SimdPath simd) const override {
    require_summand(*this, to, x.numel);
    encode_scaled<kBits>(to, x, simd);
  }
  void add_summand(const Block& x, const ConstBlock& summand, SimdPath simd) const override {
    require_summand(*this, summand, x.numel);
    add_scaled<kBits>(x, summand, simd);
  }

 private:
  template <class T>
  static void encode_as(const Block& to, const ConstBlock& x, const Grid& grid, SimdPath simd) {
    run_on(simd, EncodeOnGrid<T, kBits>{.from = static_cast<const T*>(x.data),
                                        .to = static_cast<std::uint8_t*>(to.data),
                                        .numel = x.numel,
                                        .scale = static_cast<T>(std::ldexp(1.0, -grid.exponent)),
                                        .seed = seed_of(grid),
                                        .place = static_cast<std::uint32_t>(grid.first)});
  }

  template <class T>
  static DifferenceRange add_as(const Block& x, const Inbox& heard, const ConstBlock& own,
                                const Grid& grid, SimdPath simd) {
    DifferenceRange range;
    run_on(simd, DifferenceOnGrid<T, kBits>{
                     .x = static_cast<T*>(x.data),
                     .factor = static_cast<T>(heard.weight * std::ldexp(1.0, grid.exponent)),
                     .heard = static_cast<const std::uint8_t*>(heard.block.data),
                     .own = static_cast<const std::uint8_t*>(own.data),
                     .numel = x.numel,
                     .range = &range});
    return range;
  }
};

}  // namespace gossamer::internal
