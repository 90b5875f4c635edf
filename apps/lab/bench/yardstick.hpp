#pragma once
// The bandwidth that memory has for a pass over several arrays: as many arrays as an optimizer's
// pass reads, changes and writes, and next to no arithmetic. A pass over fewer arrays, or one that
// writes a larger share, has another bandwidth on most processors.
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

  /// Seconds that a pass takes for one element with these bytes: the median of one pass over each
  /// set. Sizes that are no multiple of 4 bytes are measured with the next larger number of arrays,
  /// and scaled.
  double seconds_per_element(const PassTraffic& traffic);
  /// For tests: the arrays that passes have only written, of one set.
  [[nodiscard]] const std::vector<Buffer>& written(std::size_t set) const {
    return sets_[set].written;
  }

 private:
  /// One set.
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
  /// What is changed is multiplied by this. The compiler must not know that it is 1.
  volatile float factor_ = 1.0F;
};

}  // namespace gossamer::apps
