#pragma once
// A recorded run: the initial parameters, the gradients of every step and rank, and the resulting
// parameters. docs/design/replay.md describes the files, and how to record a case.
//
// read_recorded_case() checks that a case has all that replay() needs and is consistent. A case is
// immutable afterwards and safe to read from any thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/data/npy.hpp"
#include "base/options.hpp"
#include "core/bucket/bucket_plan.hpp"
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
  /// The largest norm of a bucket's gradients; 0: gradients are not clipped.
  double clip_norm = 0.0;
  /// The L2 distance of rank 0's model from the mean, if the record has it.
  std::optional<double> distance_to_center;

  std::string optimizer;
  std::string optimizer_options;

  /// The parameters in declared order; `offsets` says where each begins in the flat arrays, in
  /// elements.
  std::vector<ParameterInfo> parameters;
  std::vector<std::int64_t> offsets;
  /// Indices of parameters in the order in which their gradients became ready.
  std::vector<std::int64_t> order;
  /// `order` cut into buckets, and the number of elements of each bucket's block.
  std::vector<std::vector<std::int64_t>> buckets;
  std::vector<std::int64_t> bucket_block_numel;

  /// Round k belongs to the exchange that starts after step k + 1.
  std::shared_ptr<const Topology> topology;
  std::shared_ptr<const Schedule> schedule;

  NpyArray init;       // [total]
  NpyArray grads;      // [steps * micro_batches, world_size, total]
  NpyArray expected;   // [steps, world_size, total]
  NpyArray final_avg;  // [total]
};

/// Throws DataError, which says what is wrong with which key of which file.
RecordedCase read_recorded_case(const std::string& folder);

/// Says in a sentence how a plan differs from the recorded buckets; empty when it does not. Blocks
/// may differ by multiples of 128 bytes, because some records enlarge blocks until no two have the
/// same size.
std::string compare_buckets(const RecordedCase& recorded, const BucketPlan& plan);

}  // namespace gossamer::apps
