#pragma once
// Measures how fast a bucket is mixed and updated, and compares this with the least time that
// memory allows. The least time is the optimizer's least bytes per element (everything read once,
// everything new written once) at a bandwidth measured in the same run. On processors that
// yardstick is a pass over as many arrays as the optimizer's pass reads, changes and writes
// (yardstick.hpp); on GPUs it is copying a buffer of 1 GiB.
//
// Under a codec the pass decodes an encoded inbox, and encodes the block that it writes. In place
// of the plain inbox it then reads two encoded blocks, and writes one of them. The bench can also
// time the two passes in which a rank works for a sum under a codec (KernelPass).
//
// The bench updates several buckets in turn, so that no bucket is still in the cache when its turn
// comes again. Updates and the yardstick alternate, so that both see the same machine. On GPUs the
// bench times a cycle of all buckets as a whole, from the first launch to the end of the last. It
// does not wait for each launch, just as a step does not.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/lab/bench/yardstick.hpp"
#include "base/stream.hpp"
#include "core/bucket/bucket.hpp"
#include "optim/codec.hpp"

namespace gossamer::apps {

/// True if an optimizer, in either spelling, has the option accum_iter.
bool accumulates(std::string_view optimizer);
/// The options of an optimizer as YAML: `accum_iter` if the optimizer has it, defaults otherwise.
std::string options_yaml(std::string_view optimizer, std::int64_t accum_iter);

/// What the bench times.
enum class KernelPass : std::uint8_t {
  /// Mixing and update.
  kUpdate,
  /// The encoding of a block for a sum (optim/summands.hpp).
  kEncode,
  /// The same, and then the addition of what the message lacks to the rank's error, as `outer`
  /// does under a codec.
  kFeedback,
};

struct KernelBenchOptions {
  std::string optimizer = "accum_adamw";
  /// The options as YAML, as in a configuration's optimizer section.
  std::string optimizer_options = {};
  int threads = 1;
  /// MiB of a bucket's parameters, or of their master copies if there are any.
  double bucket_mib = 25.0;
  /// The type that the model computes with: float32, or bfloat16 with float32 master copies.
  DType model = DType::kFloat32;
  KernelPass pass = KernelPass::kUpdate;
  /// The codec of the exchange; null: the inbox is plain.
  const Codec* codec = nullptr;
  int buckets = 8;
  /// Buckets that are updated together (enqueue_updates()).
  int per_launch = 1;
  /// Cycles of the optimizer that are timed. One more cycle warms up.
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
  /// Milliseconds per update of one bucket: mean over a cycle, then median over buckets and cycles.
  double ms = 0.0;
  double least_ms = 0.0;
  /// Bytes per element, mean over a cycle.
  double least_bytes_per_element = 0.0;
  /// Bandwidth of the yardstick in GB/s; bytes read and bytes written both count.
  double yardstick_gb_per_s = 0.0;
  double ratio_to_least = 0.0;
  /// 95 % interval of the ratio, from its values in the single cycles.
  std::pair<double, double> ratio_interval = {};
};

class KernelBench {
 public:
  /// Throws ConfigError for an unknown optimizer, an impossible size, a codec that the pass cannot
  /// take, or a missing device.
  explicit KernelBench(const KernelBenchOptions& options);
  KernelFigures run();

  /// For tests: the buckets that the updates work on.
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Updates of every bucket so far.
  [[nodiscard]] std::int64_t num_updates() const { return num_updates_; }

 private:
  /// Gives the pass over some buckets to the stream.
  void enqueue(std::span<Bucket> some);
  void enqueue_sum(const Bucket& bucket);
  [[nodiscard]] Intake intake_of(const Bucket& bucket) const;
  /// The bytes of plain values that the pass moves for one element, with a plain inbox.
  [[nodiscard]] PassTraffic traffic(std::int64_t step) const;
  /// The least bytes per element of a step.
  [[nodiscard]] double least_bytes(std::int64_t step) const;
  /// Seconds per update of each bucket, mean over one cycle.
  std::vector<double> update_cycle();
  /// Seconds that the yardstick takes for one element of an update, mean over one cycle.
  double least_seconds_per_element();
  /// Seconds that a copy takes for one byte.
  double copy_all();

  KernelBenchOptions options_;
  std::shared_ptr<const Optimizer> optimizer_;
  WorkerPool pool_;
  std::unique_ptr<Stream> stream_;
  std::vector<Bucket> buckets_;
  std::vector<Buffer> gradients_;
  /// Encoded under a codec, as are the buckets' own blocks. The errors of sums are plain.
  std::vector<Buffer> inboxes_;
  std::vector<Buffer> own_;
  std::vector<Buffer> copied_;
  Yardstick yardstick_;
  std::int64_t num_updates_ = 0;
};

}  // namespace gossamer::apps
