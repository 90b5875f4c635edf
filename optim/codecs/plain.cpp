// The bytes of a block as they are: a copy for ranks that read it where it lies (optim/codec.hpp,
// plain_codec()).

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "optim/codec.hpp"

namespace gossamer {
namespace {

/// Copies past the caches where it can: this processor does not read the copy, and a line that is
/// not read before it is written saves a third of the traffic.
void stream_bytes(void* to, const void* from, std::size_t bytes) {
#if defined(__SSE2__)
  constexpr std::size_t kVector = sizeof(__m128i);
  if (reinterpret_cast<std::uintptr_t>(to) % kVector == 0) {
    auto* const place = static_cast<__m128i*>(to);
    const auto* const source = static_cast<const __m128i*>(from);
    const std::size_t count = bytes / kVector;
    for (std::size_t i = 0; i < count; ++i) {
      _mm_stream_si128(place + i, _mm_loadu_si128(source + i));
    }
    // A counter that this or another thread raises later must not be seen before the copy.
    _mm_sfence();
    const std::size_t done = count * kVector;
    std::memcpy(static_cast<std::byte*>(to) + done, static_cast<const std::byte*>(from) + done,
                bytes - done);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

class PlainCodec : public Codec {
 public:
  explicit constexpr PlainCodec(DType dtype) : dtype_(dtype) {}
  [[nodiscard]] std::string_view name() const override { return "plain"; }
  [[nodiscard]] std::int64_t bytes_per_element() const override { return size_of(dtype_); }
  void encode(const Block& to, const ConstBlock& x, const Grid& /*grid*/,
              SimdPath /*simd*/) const override {
    require_dtype(x.dtype, dtype_);
    require_encoded(*this, to, x.numel);
    if (x.numel > 0) stream_bytes(to.data, x.data, static_cast<std::size_t>(x.bytes()));
  }
  DifferenceRange add_difference(const Block& /*x*/, const Inbox& /*heard*/,
                                 const ConstBlock& /*own*/, const Grid& /*grid*/,
                                 SimdPath /*simd*/) const override {
    refuse();
  }
  [[nodiscard]] std::int64_t summand_bytes(std::int64_t numel) const override {
    return numel * size_of(dtype_);
  }
  void encode_summand(const Block& /*to*/, const ConstBlock& /*x*/,
                      SimdPath /*simd*/) const override {
    refuse();
  }
  void add_summand(const Block& /*x*/, const ConstBlock& /*summand*/,
                   SimdPath /*simd*/) const override {
    refuse();
  }

 private:
  [[noreturn]] static void refuse() {
    throw std::logic_error("the plain codec's blocks are mixed in as they are");
  }

  DType dtype_;
};

}  // namespace

const Codec& plain_codec(DType dtype) {
  static const PlainCodec kFloat32(DType::kFloat32);
  static const PlainCodec kFloat64(DType::kFloat64);
  static const PlainCodec kBFloat16(DType::kBFloat16);
  static const PlainCodec kInt64(DType::kInt64);
  static const PlainCodec kUInt8(DType::kUInt8);
  switch (dtype) {
    case DType::kFloat32:
      return kFloat32;
    case DType::kFloat64:
      return kFloat64;
    case DType::kBFloat16:
      return kBFloat16;
    case DType::kInt64:
      return kInt64;
    case DType::kUInt8:
      break;
  }
  return kUInt8;
}

}  // namespace gossamer
