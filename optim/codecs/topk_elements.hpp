#pragma once
// What the codec topk sends of a part (topk.cpp has the format). Processors and GPUs (optim/cuda)
// use the same functions.

#include <bit>
#include <cstdint>

#include "base/bfloat16.hpp"
#include "base/host_device.hpp"

namespace gossamer::internal {

inline constexpr std::int64_t kTopKShare = 64;
inline constexpr int kTopKElementBits = 12;
inline constexpr std::int64_t kTopKHeadBytes = 2 * sizeof(std::uint16_t);

/// Elements that are sent of a part of `numel` elements.
GOSSAMER_HOST_DEVICE constexpr std::int64_t num_sent(std::int64_t numel) {
  return (numel + kTopKShare - 1) / kTopKShare;
}

/// Bytes of a part of `numel` elements.
GOSSAMER_HOST_DEVICE constexpr std::int64_t topk_bytes(std::int64_t numel) {
  return numel == 0 ? 0 : kTopKHeadBytes + (num_sent(numel) * kTopKElementBits + 7) / 8;
}

/// The smallest and the largest |x| that a part sends.
struct TopKLevels {
  float low = 0.0F;
  float high = 0.0F;
};

/// The 12 bits of a sent element. `size`: its float_size().
GOSSAMER_INLINE_ANYWHERE std::uint32_t topk_element(std::uint32_t place, bool is_negative,
                                                    std::int32_t size, const TopKLevels& levels) {
  const float middle = levels.low + (levels.high - levels.low) / 2.0F;
  const std::uint32_t level = std::bit_cast<float>(size) > middle ? 1U : 0U;
  return place | (is_negative ? 1U : 0U) << 10U | level << 11U;
}

GOSSAMER_INLINE_ANYWHERE std::int64_t topk_place(std::uint32_t element) { return element & 0x3ffU; }

/// The value of a sent element. `levels`: as the part's head says.
template <class T>
GOSSAMER_INLINE_ANYWHERE T topk_value(std::uint32_t element, const TopKLevels& levels) {
  const T size = static_cast<T>((element >> 11U) == 0 ? levels.low : levels.high);
  return (element >> 10U & 1U) == 0 ? size : -size;
}

}  // namespace gossamer::internal
