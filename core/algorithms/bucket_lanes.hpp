#pragma once
// One lane for each bucket of an algorithm. The factory keeps the lanes, and the pipeline drains,
// forgets, saves and loads them. Not thread safe.

#include <concepts>
#include <cstdint>

#include "core/algorithms/algorithm.hpp"
#include "core/bucket/per_bucket.hpp"

namespace gossamer {

class BucketLanes {
 public:
  BucketLanes() = default;
  /// Collective. `spec_of(bucket)` says what the bucket's lane carries.
  template <std::invocable<const Bucket&> SpecOf>
  BucketLanes(const AlgorithmSetup& setup, const SpecOf& spec_of) {
    for (const Bucket& bucket : setup.buckets) {
      lanes_.add(&setup.lanes.make_lane(spec_of(bucket)));
    }
  }
  /// Lanes for blocks of the buckets' sizes. `like` says the rest. `num_extra(bucket)` is the
  /// number of elements that a message has in addition to the bucket's block; null: none. No codec
  /// encodes them.
  explicit BucketLanes(const AlgorithmSetup& setup, const LaneSpec& like = {},
                       std::int64_t (*num_extra)(const Bucket&) = nullptr)
      : BucketLanes(setup, [&](const Bucket& bucket) {
          LaneSpec spec = like;
          spec.bucket = bucket.index();
          spec.numel = bucket.spec().numel + (num_extra == nullptr ? 0 : num_extra(bucket));
          spec.num_coded = bucket.spec().numel;
          spec.dtype = bucket.spec().dtype;
          spec.shard_borders = bucket.shard_borders();
          return spec;
        }) {}

  Lane& operator[](const Bucket& bucket) { return *lanes_[bucket]; }

 private:
  PerBucket<Lane*> lanes_;
};

}  // namespace gossamer
