#pragma once
// Groups of neighbouring small buckets. On a GPU one launch updates all buckets of a group
// (optim/cuda/sweep_table.hpp), because a launch costs 5 to 7 microseconds beside its bytes. The
// norms of the group's gradients take two launches, and the decisions about them one.
//
// Example: adamw moves the 8 MiB of a bucket of 1 MiB in 2 microseconds on an H200. By these
// figures 200 such buckets take 1.6 ms in 200 launches, four times the least. In groups of 16 they
// take 13 launches and 0.48 ms, 1.2 times the least. A bucket of the default size, 25 MiB, stays
// alone.
//
// Price: the first message of a group waits for the last gradient of the group. With kGroupBytes
// it waits no longer than the first message of a bucket of that size, and such a bucket is smaller
// than the default one. Nothing waits longer where updates come after the backward pass anyway.
//
// Order: groups follow from the plan of the buckets alone, and never from what has arrived. So all
// ranks make the same calls of the algorithm in the same order, which NCCL's operations need.

#include <cstdint>
#include <span>
#include <vector>

#include "core/bucket/bucket.hpp"
#include "optim/gradient_control.hpp"

namespace gossamer {

/// The most bytes of parameters that a group of several buckets has.
inline constexpr std::int64_t kGroupBytes = std::int64_t{16} << 20;
inline constexpr std::size_t kMostInGroup = 32;

/// The groups of all buckets, in their order.
struct UpdateGroups {
  std::vector<std::span<Bucket>> all;
  /// The scratch memory of take_squares(); the work of the groups uses it in turn. Empty on
  /// processors.
  Buffer squares_scratch;
};

/// Cuts buckets into groups of at most `group_bytes`, in their order. The buckets of a group have
/// one optimizer and the same types. On a stream that works inside the call every bucket is a
/// group, because there are no launches. The buckets must outlive the groups, and stay where they
/// are.
std::vector<std::span<Bucket>> groups_of(std::span<Bucket> buckets, const Stream& stream,
                                         std::int64_t group_bytes = kGroupBytes);

/// Enqueues the work that computes Bucket::squares() for the gradients of a group that have
/// arrived. The buckets' squares lie one behind the other. `scratch`: squares_scratch_numel()
/// elements.
void take_squares(Stream& stream, std::span<const Bucket> group, const Block& scratch,
                  SimdPath simd, WorkerPool* pool);
/// The scratch memory that take_squares() needs for any of the groups; 0 for streams on processors.
std::int64_t squares_scratch_numel(const Stream& stream, std::span<const std::span<Bucket>> groups);

}  // namespace gossamer
