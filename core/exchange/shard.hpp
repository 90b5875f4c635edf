#pragma once
// How the ranks of a node share the elements of a block.

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/types.hpp"

namespace gossamer {

/// Elements [first, first + numel) of a block.
struct Shard {
  std::int64_t first = 0;
  std::int64_t numel = 0;

  [[nodiscard]] std::int64_t last() const { return first + numel; }
};

/// The elements of `shard` that lie in `whole`. If there are none, an empty shard in `whole`.
inline Shard part_within(const Shard& shard, const Shard& whole) {
  const std::int64_t first = std::clamp(shard.first, whole.first, whole.last());
  return {.first = first, .numel = std::clamp(shard.last(), whole.first, whole.last()) - first};
}

/// The shard of member `place` of `count`. Without `borders`, shards begin at cache lines of 64
/// bytes, and their sizes differ by one line at most. With `borders`, shards begin at borders only:
/// each at the border nearest to where it would otherwise begin. The borders are in rising order,
/// and the first border is 0. A bucket of few parameters then has shards for few members only. So
/// the members take the shards in another order for each `turn` (the index of the bucket).
inline Shard shard_of(std::int64_t numel, DType dtype, int place, int count,
                      std::span<const std::int64_t> borders = {}, std::int64_t turn = 0) {
  constexpr std::int64_t kCacheLine = 64;
  const std::int64_t line = kCacheLine / size_of(dtype);
  const std::int64_t num_lines = (numel + line - 1) / line;
  const auto begin = [&](std::int64_t i) {
    const std::int64_t even = std::min(numel, num_lines * i / count * line);
    if (borders.empty()) return even;
    const auto above = std::ranges::upper_bound(borders, even);
    const std::int64_t next = above == borders.end() ? numel : *above;
    const std::int64_t before = above == borders.begin() ? 0 : *(above - 1);
    return even - before <= next - even ? before : next;
  };
  const std::int64_t own = borders.empty() ? place : (place + turn) % count;
  return {.first = begin(own), .numel = begin(own + 1) - begin(own)};
}

template <class AnyBlock>
AnyBlock part_of(const AnyBlock& block, const Shard& shard) {
  return gossamer::part_of(block, shard.first, shard.numel);
}

}  // namespace gossamer
