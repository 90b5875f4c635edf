#pragma once
// A codec that rounds every element to a floating-point type of 16 bits.
//
// `Format` is a type as in small_formats.hpp, with the constexpr value `kName`, and with three
// always-inline functions:
//   static std::uint16_t encode(float value);
//   static std::uint16_t encode_summand(float value);
//   static float decode(std::uint16_t bits);
// A format with kernels for GPUs says so in `kKernels` (Codec::kernels()).

#include <cstdint>
#include <string_view>

#include "optim/codec.hpp"
#include "optim/simd.hpp"

namespace gossamer::internal {

template <class Format, class T>
struct EncodeLoop {
  const T* from;
  std::uint16_t* to;
  std::int64_t numel;

  [[gnu::always_inline]] void operator()() const {
    const T* const x = from;
    std::uint16_t* const bits = to;
    const std::int64_t count = numel;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) bits[i] = Format::encode(static_cast<float>(x[i]));
  }
};

/// EncodeLoop with the encoding for sums.
template <class Format>
struct ForSums {
  [[gnu::always_inline]] static std::uint16_t encode(float value) {
    return Format::encode_summand(value);
  }
};

template <class Format, class T>
struct AddLoop {
  T* x;
  const std::uint16_t* summand;
  std::int64_t numel;

  [[gnu::always_inline]] void operator()() const {
    T* const sum = x;
    const std::uint16_t* const bits = summand;
    const std::int64_t count = numel;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) sum[i] += static_cast<T>(Format::decode(bits[i]));
  }
};

template <class Format, class T>
struct DifferenceLoop {
  T* x;
  double weight;
  const std::uint16_t* heard;
  const std::uint16_t* own;
  std::int64_t numel;

  [[gnu::always_inline]] void operator()() const {
    T* const sum = x;
    const std::uint16_t* const theirs = heard;
    const std::uint16_t* const ours = own;
    const T take = static_cast<T>(weight);
    const std::int64_t count = numel;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      const T difference =
          static_cast<T>(Format::decode(theirs[i])) - static_cast<T>(Format::decode(ours[i]));
      sum[i] += take * difference;
    }
  }
};

template <class Format>
class SmallFloatCodec : public MixingCodec {
 public:
  [[nodiscard]] std::string_view name() const override { return Format::kName; }
  [[nodiscard]] CodecKernels kernels() const override {
    if constexpr (requires { Format::kKernels; }) {
      return Format::kKernels;
    } else {
      return CodecKernels::kNone;
    }
  }
  [[nodiscard]] std::int64_t encoded_bytes(std::int64_t numel) const override {
    return numel * static_cast<std::int64_t>(sizeof(std::uint16_t));
  }

  void encode(const Block& to, const ConstBlock& x, const Grid& /*grid*/,
              SimdPath simd) const override {
    encode_as<Format>(to, x, simd);
  }

  DifferenceRange add_difference(const Block& x, const Inbox& heard, const ConstBlock& own,
                                 const Grid& /*grid*/, SimdPath simd) const override {
    require_encoded(*this, heard.block, x.numel);
    require_encoded(*this, own, x.numel);
    const auto* const theirs = static_cast<const std::uint16_t*>(heard.block.data);
    const auto* const ours = static_cast<const std::uint16_t*>(own.data);
    if (x.dtype == DType::kFloat32) {
      run_on(simd, DifferenceLoop<Format, float>{static_cast<float*>(x.data), heard.weight, theirs,
                                                 ours, x.numel});
      return {};
    }
    require_dtype(x.dtype, DType::kFloat64);
    run_on(simd, DifferenceLoop<Format, double>{static_cast<double*>(x.data), heard.weight, theirs,
                                                ours, x.numel});
    return {};
  }

  [[nodiscard]] std::int64_t summand_bytes(std::int64_t numel) const override {
    return encoded_bytes(numel);
  }

  void encode_summand(const Block& to, const ConstBlock& x, SimdPath simd) const override {
    encode_as<ForSums<Format>>(to, x, simd);
  }

  void add_summand(const Block& x, const ConstBlock& summand, SimdPath simd) const override {
    require_summand(*this, summand, x.numel);
    const auto* const bits = static_cast<const std::uint16_t*>(summand.data);
    if (x.dtype == DType::kFloat32) {
      return run_on(simd, AddLoop<Format, float>{static_cast<float*>(x.data), bits, x.numel});
    }
    require_dtype(x.dtype, DType::kFloat64);
    run_on(simd, AddLoop<Format, double>{static_cast<double*>(x.data), bits, x.numel});
  }

 private:
  template <class Encoder>
  void encode_as(const Block& to, const ConstBlock& x, SimdPath simd) const {
    require_encoded(*this, to, x.numel);
    auto* const bits = static_cast<std::uint16_t*>(to.data);
    if (x.dtype == DType::kFloat32) {
      const auto* const values = static_cast<const float*>(x.data);
      return run_on(simd, EncodeLoop<Encoder, float>{values, bits, x.numel});
    }
    require_dtype(x.dtype, DType::kFloat64);
    const auto* const values = static_cast<const double*>(x.data);
    run_on(simd, EncodeLoop<Encoder, double>{values, bits, x.numel});
  }
};

}  // namespace gossamer::internal
