#pragma once
// A recorded run: initial parameters, the gradients of every step and rank, and the parameters that
// came out. docs/replay.md describes the files and how to record a case.
//
// A case is checked when it is read: what replay() needs is there and fits together. Immutable
// afterwards and safe to read from any thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/lab/replay/npy.hpp"
#include "base/options.hpp"
#include "core/bucket_plan.hpp"
#include "optim/schedule.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

struct RecordedCase {
  std::string name;
  int world_size = 1;
  int local_world_size = 1;
  std::int64_t steps = 0;
  std::int64_t micro_batches = 1;
  std::int64_t bucket_bytes = 0;
  /// 0: gradients are not clipped. Otherwise per bucket.
  double clip_norm = 0.0;
  /// The L2 distance from rank 0 to the mean; not all records have it.
  std::optional<double> distance_to_center;

  std::string optimizer;
  std::string optimizer_options;

  /// In declared order, and where each begins in the flat arrays.
  std::vector<ParameterInfo> parameters;
  std::vector<std::int64_t> offsets;
  /// Parameters in the order in which their gradients became ready.
  std::vector<std::int64_t> order;
  /// That order as it was cut, and the elements of each bucket's block.
  std::vector<std::vector<std::int64_t>> buckets;
  std::vector<std::int64_t> bucket_block_numel;

  /// Round k is that of the exchange launched after step k + 1.
  std::shared_ptr<const Topology> topology;
  std::shared_ptr<const Schedule> schedule;

  NpyArray init;       // [total]
  NpyArray grads;      // [steps * micro_batches, world_size, total]
  NpyArray expected;   // [steps, world_size, total]
  NpyArray final_avg;  // [total]
};

/// Throws DataError, which names the file, the key and what is wrong.
RecordedCase read_recorded_case(const std::string& folder);

/// How a plan differs from the recorded buckets, as a sentence; empty when it does not. A record
/// may have made a block larger by multiples of 128 bytes, so that no two blocks had the same size.
std::string compare_buckets(const RecordedCase& recorded, const BucketPlan& plan);

}  // namespace gossamer::apps
