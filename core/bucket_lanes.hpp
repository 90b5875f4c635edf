#pragma once
// One lane for each bucket of an algorithm. Not thread safe.

#include <memory>
#include <string_view>

#include "core/algorithm.hpp"
#include "core/per_bucket.hpp"

namespace gossamer {

class BucketLanes {
 public:
  /// Collective. `content`: as in LaneSpec; text that outlives the lanes. `num_extra(bucket)` is
  /// the number of elements that a message has in addition to the bucket's block; null: none.
  BucketLanes(const AlgorithmSetup& setup, LaneRounds rounds,
              std::string_view content = "parameters",
              std::int64_t (*num_extra)(const Bucket&) = nullptr) {
    for (const Bucket& bucket : setup.buckets) {
      lanes_.add(setup.lanes.make_lane(
          {.rounds = rounds,
           .bucket = bucket.index(),
           .numel = bucket.spec().numel + (num_extra == nullptr ? 0 : num_extra(bucket)),
           .dtype = bucket.spec().dtype,
           .content = content}));
    }
  }

  Lane& operator[](const Bucket& bucket) { return *lanes_[bucket]; }

  void wait() {
    for (const auto& lane : lanes_) lane->wait();
  }
  void forget() {
    for (const auto& lane : lanes_) lane->forget();
  }

 private:
  PerBucket<std::unique_ptr<Lane>> lanes_;
};

}  // namespace gossamer
