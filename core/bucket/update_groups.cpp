#include "core/bucket/update_groups.hpp"

#include <algorithm>
#include <optional>

namespace gossamer {
namespace {

bool are_alike(const Bucket& a, const Bucket& b) {
  return &a.optimizer() == &b.optimizer() && a.spec().dtype == b.spec().dtype &&
         a.spec().model_dtype == b.spec().model_dtype;
}

/// The number of first buckets that are a group.
std::size_t group_size(std::span<const Bucket> buckets, std::int64_t group_bytes) {
  std::int64_t bytes = buckets.front().spec().bytes();
  std::size_t size = 1;
  for (; size < std::min(buckets.size(), kMostInGroup); ++size) {
    bytes += buckets[size].spec().bytes();
    if (bytes > group_bytes || !are_alike(buckets.front(), buckets[size])) break;
  }
  return size;
}

}  // namespace

std::vector<std::span<Bucket>> groups_of(std::span<Bucket> buckets, const Stream& stream,
                                         std::int64_t group_bytes) {
  std::vector<std::span<Bucket>> groups;
  while (!buckets.empty()) {
    groups.push_back(buckets.first(stream.immediate() ? 1 : group_size(buckets, group_bytes)));
    buckets = buckets.subspan(groups.back().size());
  }
  return groups;
}

void take_squares(Stream& stream, std::span<const Bucket> group, const Block& scratch,
                  SimdPath simd, WorkerPool* pool) {
  SquaresInput input{.scratch = scratch, .simd = simd, .pool = pool};
  const auto take = [&] {
    input.squares.numel = std::ssize(input.gradients);
    if (!input.gradients.empty()) enqueue_squares(stream, input);
    input.gradients.clear();
  };
  std::optional<DType> dtype;
  for (const Bucket& bucket : group) {
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      const ConstBlock gradient = bucket.gradient(entry);
      if (gradient.data != nullptr) {
        // Where ranks are lost, sums may stand in some buckets and this rank's own in the others.
        if (dtype && *dtype != gradient.dtype) take();
        dtype = gradient.dtype;
      }
      if (input.gradients.empty()) input.squares = part_of(bucket.squares(), entry, 1);
      input.gradients.push_back(gradient);
    }
  }
  take();
}

std::int64_t squares_scratch_numel(const Stream& stream,
                                   std::span<const std::span<Bucket>> groups) {
  std::int64_t most = 0;
  if (stream.on_host()) return most;
  for (const std::span<Bucket> group : groups) {
    std::vector<std::int64_t> numels;
    for (const Bucket& bucket : group) {
      for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
        numels.push_back(bucket.part(bucket.parameters().block(), entry).numel);
      }
    }
    most = std::max(most, squares_scratch_numel(numels));
  }
  return most;
}

}  // namespace gossamer
