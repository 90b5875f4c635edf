#pragma once
// How fast a bucket is mixed and updated, against the least time that memory allows: the
// optimizer's least bytes per element (everything read once, everything new written once) at a
// bandwidth measured in the same run. On processors that is scaling the same parameters in place,
// x <- c x, 2 accesses per element and no write-allocate; on GPUs copying a buffer of 1 GiB.
//
// Several buckets in turn, so that none is still in the cache when it comes round again. Updates
// and the yardstick alternate, so that both see the same machine. On GPUs a cycle of all buckets is
// timed as a whole, from the first launch to the end of the last: launches are not waited for, as
// in a step.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/stream.hpp"
#include "core/bucket.hpp"

namespace gossamer::apps {

/// Whether an optimizer, in either spelling, has the option accum_iter.
bool accumulates(std::string_view optimizer);
/// The YAML of an optimizer that has its defaults but for accum_iter, where it has that.
std::string options_yaml(std::string_view optimizer, std::int64_t accum_iter);

struct KernelBenchOptions {
  std::string optimizer = "accum_adamw";
  /// YAML, as in a configuration's optimizer section.
  std::string optimizer_options = {};
  int threads = 1;
  /// Of a bucket's parameters, master copies where there are some.
  double bucket_mib = 25.0;
  /// What the model computes with: float32, or bfloat16 with float32 master copies.
  DType model = DType::kFloat32;
  int buckets = 8;
  /// Cycles of the optimizer that are timed; one more warms up.
  int cycles = 10;
  SimdPath simd = best_simd_path();
  Device device = {};
  /// Bytes that the yardstick of a GPU copies.
  std::int64_t copy_bytes = std::int64_t{1} << 30;
};

struct KernelFigures {
  std::int64_t numel = 0;
  /// Steps per cycle.
  std::int64_t cycle = 1;
  /// Median over buckets and cycles of the time for one bucket, mean over a cycle.
  double ms = 0.0;
  double least_ms = 0.0;
  /// Mean over a cycle.
  double least_bytes_per_element = 0.0;
  /// Of the yardstick: bytes read and written.
  double yardstick_gb_per_s = 0.0;
  double ratio_to_least = 0.0;
  /// 95 % interval of the ratio, cycle by cycle.
  std::pair<double, double> ratio_interval = {};
};

class KernelBench {
 public:
  /// Throws ConfigError for an unknown optimizer, a size that is none, or a device that is not
  /// there.
  explicit KernelBench(const KernelBenchOptions& options);
  KernelFigures run();

  /// For tests: what the updates work on.
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Updates of every bucket so far.
  [[nodiscard]] std::int64_t num_updates() const { return num_updates_; }

 private:
  void update(std::size_t bucket);
  /// Seconds for each bucket, mean over one cycle.
  std::vector<double> update_cycle();
  /// Seconds that moving one byte takes by the yardstick.
  double seconds_per_byte();
  double scale_all();
  double copy_all();

  KernelBenchOptions options_;
  std::shared_ptr<const Optimizer> optimizer_;
  WorkerPool pool_;
  std::unique_ptr<Stream> stream_;
  std::vector<Bucket> buckets_;
  std::vector<Buffer> gradients_;
  std::vector<Buffer> inboxes_;
  std::vector<Buffer> copied_;
  std::int64_t num_updates_ = 0;
  std::int64_t num_scalings_ = 0;
};

}  // namespace gossamer::apps
