#include "optim/sparse_layout.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

// Exponent and the first 3 bits of the significand of a float32, without its sign.
constexpr int kDroppedBits = 20;
constexpr std::size_t kNumKeys = 1U << (31 - kDroppedBits);
constexpr std::int64_t kAlignment = 8;
// With fewer parts, waking the other threads takes longer than sharing the work saves.
constexpr std::int64_t kLeastSharedParts = 16;

using Keys = std::array<std::uint16_t, SparseLayout::kPart>;

template <class T>
struct TakeKeys {
  const T* x;
  const T* from;
  std::int64_t numel;
  std::uint16_t* keys;

  [[gnu::always_inline]] void operator()() const {
    const T* const a = x;
    const T* const b = from;
    std::uint16_t* const to = keys;
    const std::int64_t count = numel;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      constexpr T kLargest = static_cast<T>(std::numeric_limits<float>::max());
      const T size = std::abs(a[i] - b[i]);
      const auto bits =
          std::bit_cast<std::uint32_t>(static_cast<float>(size > kLargest ? kLargest : size));
      to[i] = static_cast<std::uint16_t>(bits >> kDroppedBits);
    }
  }
};

/// The key of the last elements that are sent, and how many elements of this key are.
struct Threshold {
  std::size_t key = 0;
  std::int64_t room = 0;
};

Threshold threshold_of(const Keys& keys, std::int64_t numel, std::int64_t count) {
  std::array<std::uint16_t, kNumKeys> histogram{};
  for (std::int64_t i = 0; i < numel; ++i) ++histogram[keys[static_cast<std::size_t>(i)]];
  Threshold threshold{.key = kNumKeys - 1, .room = count};
  while (threshold.room > histogram[threshold.key]) threshold.room -= histogram[threshold.key--];
  return threshold;
}

/// `to`: the part's bytes in a message.
template <class T>
void encode_part(const T* x, const T* from, std::int64_t numel, std::int64_t count, std::byte* to,
                 SimdPath simd) {
  Keys keys;
  run_on(simd, TakeKeys<T>{x, from, numel, keys.data()});
  const Threshold threshold = threshold_of(keys, numel, count);
  T* const values = reinterpret_cast<T*>(to);
  auto* const places = reinterpret_cast<std::uint16_t*>(values + count);
  std::int64_t room = threshold.room;
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < numel; ++i) {
    const std::size_t key = keys[static_cast<std::size_t>(i)];
    if (key < threshold.key) continue;
    if (key == threshold.key && room-- <= 0) continue;
    values[next] = x[i] - from[i];
    places[next++] = static_cast<std::uint16_t>(i);
  }
}

template <class T>
void add_part(std::span<T> x, const std::byte* from, std::int64_t count, T weight) {
  const T* const values = reinterpret_cast<const T*>(from);
  const auto* const places = reinterpret_cast<const std::uint16_t*>(values + count);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t place = places[i];
    if (place >= x.size()) {
      throw CommError({.label = {.what = "message of largest elements"}},
                      concat("it names element ", place, " of a part of ", x.size(),
                             "; the message is damaged"));
    }
    x[place] += weight * values[i];
  }
}

void require_message(const ConstBlock& message, std::int64_t num_bytes) {
  if (message.dtype == DType::kUInt8 && message.numel == num_bytes) return;
  throw std::logic_error(concat("SparseLayout: a message of ", message.numel, " elements of ",
                                name_of(message.dtype), " instead of ", num_bytes, " bytes"));
}

void require_dtype_of(const ConstBlock& block, DType dtype) {
  if (block.dtype != dtype) throw std::logic_error("SparseLayout: a block of another type");
}

template <class T>
T* at(const Block& block, std::int64_t offset) {
  return static_cast<T*>(block.data) + offset;
}
template <class T>
const T* at(const ConstBlock& block, std::int64_t offset) {
  return static_cast<const T*>(block.data) + offset;
}

}  // namespace

void SparseLayout::add(std::int64_t offset, std::int64_t numel) {
  for (std::int64_t first = 0; first < numel; first += kPart) {
    const std::int64_t size = std::min(kPart, numel - first);
    const auto count =
        std::clamp<std::int64_t>(std::llround(fraction_ * static_cast<double>(size)), 1, size);
    parts_.push_back(
        {.offset = offset + first, .numel = size, .count = count, .begin = num_bytes_});
    const std::int64_t bytes =
        count * (size_of(dtype_) + static_cast<std::int64_t>(sizeof(std::uint16_t)));
    num_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
}

void SparseLayout::encode(const Block& message, const ConstBlock& x, const ConstBlock& from,
                          SimdPath simd, WorkerPool* pool) const {
  require_message(message, num_bytes_);
  require_dtype_of(x, dtype_);
  require_dtype_of(from, dtype_);
  const auto encode_parts = [&](const PartRange& range) {
    for (std::int64_t i = range.first; i < range.last; ++i) {
      const Part& part = parts_[static_cast<std::size_t>(i)];
      std::byte* const to = static_cast<std::byte*>(message.data) + part.begin;
      if (dtype_ == DType::kFloat32) {
        encode_part(at<float>(x, part.offset), at<float>(from, part.offset), part.numel, part.count,
                    to, simd);
      } else {
        encode_part(at<double>(x, part.offset), at<double>(from, part.offset), part.numel,
                    part.count, to, simd);
      }
    }
  };
  const bool shares = pool != nullptr && std::ssize(parts_) >= kLeastSharedParts;
  if (shares) return pool->share(std::ssize(parts_), 1, encode_parts);
  encode_parts({0, std::ssize(parts_)});
}

void SparseLayout::add_to(const Block& x, const ConstBlock& message, double weight) const {
  require_message(message, num_bytes_);
  require_dtype_of(x, dtype_);
  for (const Part& part : parts_) {
    const std::byte* const from = static_cast<const std::byte*>(message.data) + part.begin;
    const auto offset = static_cast<std::size_t>(part.offset);
    const auto numel = static_cast<std::size_t>(part.numel);
    if (dtype_ == DType::kFloat32) {
      add_part(x.as<float>().subspan(offset, numel), from, part.count, static_cast<float>(weight));
    } else {
      add_part(x.as<double>().subspan(offset, numel), from, part.count, weight);
    }
  }
}

}  // namespace gossamer
