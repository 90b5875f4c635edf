#pragma once
// Replays a recorded case. It runs the real buckets, optimizers and communicator with recorded
// gradients instead of a model's. Collective: every rank calls replay() once.

#include <cstdint>
#include <optional>
#include <string>

#include "apps/lab/replay/recorded_case.hpp"
#include "base/types.hpp"
#include "comm/communicator.hpp"
#include "optim/simd.hpp"

namespace gossamer::apps {

struct ReplayOptions {
  /// The largest absolute difference allowed.
  double tolerance = 2e-6;
  /// Bytes at which a bucket closes. Nothing: as in the record.
  std::optional<std::int64_t> bucket_bytes = std::nullopt;
  SimdPath simd = best_simd_path();
  int num_threads = 1;
  /// The device of the model. All ranks of this process share a GPU, and exchanges then go through
  /// host memory.
  Device device = {};
};

/// The largest difference found, and its place. `step` counts from 1; 0 stands for the average.
struct Deviation {
  double error = 0.0;
  std::int64_t step = 0;
  int rank = 0;
  std::int64_t parameter = 0;
  /// Element of the parameter, row-major.
  std::int64_t element = 0;
  double actual = 0.0;
  double expected = 0.0;
};

struct ReplayReport {
  Deviation steps;
  Deviation average;
  /// How the buckets differ from the record; empty: they do not differ, or were not compared.
  std::string bucket_difference;
  bool buckets_compared = false;
  std::int64_t num_buckets = 0;
  double distance_to_center = 0.0;
  /// True: distance_to_center differs from the record by more than the tolerance allows.
  bool distance_differs = false;

  [[nodiscard]] bool passed(double tolerance) const;
};

/// Collective. Returns the same report on every rank. Throws ConfigError when the world has another
/// size than the case, or when `bucket_bytes` is given although gradients are clipped per bucket.
ReplayReport replay(Communicator& communicator, const RecordedCase& recorded,
                    const ReplayOptions& options);

}  // namespace gossamer::apps
