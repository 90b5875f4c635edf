#pragma once
// Measures how fast memory is for a pass with next to no arithmetic. The pass goes over as many
// arrays as an optimizer's pass reads, changes and writes, because the bandwidth of most processors
// depends on these numbers.
//
// Not thread safe.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.hpp"
#include "base/worker_pool.hpp"
#include "optim/optimizer.hpp"
#include "optim/simd.hpp"

namespace gossamer::apps {

class Yardstick {
 public:
  /// `numel`: elements of a float32 array. `num_sets`: sets of arrays that take turns, so that
  /// caches do not keep them. `pool` must outlive this object.
  Yardstick(std::int64_t numel, int num_sets, WorkerPool& pool, SimdPath simd);

  /// Seconds that a pass takes for one element that moves the bytes of `traffic`: the median of one
  /// pass over each set. Bytes that are no multiple of 4 are measured with the next larger number
  /// of arrays, and the time is scaled.
  double seconds_per_element(const PassTraffic& traffic);
  /// For tests: the arrays of one set that passes have only written.
  [[nodiscard]] const std::vector<Buffer>& written(std::size_t set) const {
    return sets_[set].written;
  }

 private:
  /// The arrays of one set, by what a pass does to them.
  struct Arrays {
    std::vector<Buffer> read;
    std::vector<Buffer> changed;
    std::vector<Buffer> written;
  };

  void reserve(std::vector<Buffer>& buffers, std::size_t count) const;
  double time_pass(Arrays& arrays, std::size_t num_read, std::size_t num_changed,
                   std::size_t num_written);

  std::int64_t numel_;
  WorkerPool& pool_;
  SimdPath simd_;
  std::vector<Arrays> sets_;
  /// A pass multiplies the arrays that it changes by this factor. The compiler must not know that
  /// the factor is 1.
  volatile float factor_ = 1.0F;
};

}  // namespace gossamer::apps
