#pragma once
// One lane for each bucket of an algorithm. Not thread safe.

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/text.hpp"
#include "core/algorithm.hpp"
#include "core/per_bucket.hpp"

namespace gossamer {

class BucketLanes {
 public:
  BucketLanes() = default;
  /// Collective. `spec_of(bucket)` says what the bucket's lane carries.
  template <std::invocable<const Bucket&> SpecOf>
  BucketLanes(const AlgorithmSetup& setup, const SpecOf& spec_of) {
    for (const Bucket& bucket : setup.buckets) {
      const LaneSpec spec = spec_of(bucket);
      content_ = spec.content;
      lanes_.add(setup.lanes.make_lane(spec));
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
          return spec;
        }) {}

  Lane& operator[](const Bucket& bucket) { return *lanes_[bucket]; }

  void drain() {
    for (const auto& lane : lanes_) lane->drain();
  }
  /// For Algorithm::visit(). A lane's state is shown once for each parameter of its bucket, because
  /// saved state does not depend on buckets. A run that goes on with another codec finds no grids,
  /// or drops them.
  void visit(StateVisitor& visitor, std::span<const Bucket> buckets) {
    for (const Bucket& bucket : buckets) {
      const std::optional<GridState> own = lanes_[bucket]->state();
      if (!own && !visitor.loads()) continue;
      std::optional<GridState> found;
      for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
        const std::string prefix = concat(bucket.name(entry), "/", content_, "_");
        const std::string exponent = concat(prefix, "grid");
        if (visitor.loads() && !visitor.holds(exponent)) continue;
        GridState state = own.value_or(GridState());
        visitor.number(exponent, state.exponent);
        visitor.number(concat(prefix, "vote"), state.vote);
        visitor.number(concat(prefix, "largest_difference"), state.largest);
        found = found ? found->together(state) : state;
      }
      if (own && visitor.loads()) lanes_[bucket]->restore(found.value_or(GridState()));
    }
  }
  void forget() {
    for (const auto& lane : lanes_) lane->forget();
  }

 private:
  std::string_view content_;
  PerBucket<std::unique_ptr<Lane>> lanes_;
};

}  // namespace gossamer
