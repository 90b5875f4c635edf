#pragma once
// The optimizer's moments, of which ranks take the mean every few rounds.
//
// Adam divides by the root of a second moment v. Every rank has its own v, so the mean of the
// ranks' updates is not the update of the mean gradient; on uneven data the difference is large
// (docs/measurements/accuracy.md). Therefore ranks take the mean of their v after every H rounds,
// and after 1, 2, 4, 8, ... < H rounds, where v is young and changes fast. First moments, or the
// momentum of descent, have a period of their own, as in DES-LOC (arXiv 2505.22549).
//
// If ranks took the mean of m and not of v, m / sqrt(v) could be a huge step. A v near 0 has not
// seen the gradients that are in the mean m. So the period of m must be a multiple of the period of
// v. Where parameters have several optimizers, each optimizer shares the moments that it has, and
// an optimizer with a v shares m only if it shares v.
//
// The means travel beside the exchange of the parameters, and no codec encodes them: a second
// moment that took in an encoded difference could become negative. Nothing writes a moment between
// two updates, so the moment itself is sent.
//
// Protocol for a bucket: start() after an update, finish() before the next update. After loading,
// the caller starts the saved round again.
//
// Errors: CommError from lanes. Not thread safe.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "core/algorithms/algorithm.hpp"
#include "core/algorithms/bucket_lanes.hpp"

namespace gossamer {

/// Periods of means; 0: never.
struct MomentPeriods {
  std::int64_t second = 0;
  /// The period of first moments, and of the momentum of descent.
  std::int64_t first = 0;

  [[nodiscard]] bool any() const { return second > 0 || first > 0; }
  /// The number of rounds after which both periods begin anew.
  [[nodiscard]] std::int64_t together() const {
    return std::lcm(std::max<std::int64_t>(second, 1), std::max<std::int64_t>(first, 1));
  }
};

/// Why the setting's optimizers cannot share moments with these values of share_moments and
/// share_momentum, in steps; empty: they can.
std::string why_not_shared(const MomentPeriods& periods, const AlgorithmSetting& setting);

class SharedMoments {
 public:
  /// Collective. `periods` count rounds. `members`: all ranks, or the ranks that meet in a round of
  /// the topology.
  SharedMoments(const AlgorithmSetup& setup, const MomentPeriods& periods, LaneMembers members);

  /// Takes the means that are under way.
  void finish(const Bucket& bucket);
  /// Starts the means that are due after `count` >= 1 rounds, as round `lane_round` of their lanes.
  void start(const Bucket& bucket, std::int64_t count, std::int64_t lane_round);

 private:
  struct Kind;
  /// The means of one state.
  struct Means {
    bool starts_early;
    std::int64_t every;
    BucketLanes lanes;
    /// The states; empty in buckets that do not share the state.
    PerBucket<Buffer> states;
  };

  void share(const Kind& kind, std::int64_t every, LaneMembers members);

  AlgorithmSetup setup_;
  std::vector<Means> means_;
};

}  // namespace gossamer
