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
  /// `numel`: elements of a float32 array. `pool` must outlive this object.
  Yardstick(std::int64_t numel, WorkerPool& pool, SimdPath simd);

  /// Seconds for one pass of this kind over one element, if it has these bytes. Sizes that are no
  /// multiple of 4 bytes are measured with the next larger number of arrays, and scaled.
  double seconds_per_element(const PassTraffic& traffic);

 private:
  /// One of the two sets of arrays; they take turns, so that caches do not keep them.
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
  std::vector<Arrays> sets_ = std::vector<Arrays>(2);
  std::int64_t num_passes_ = 0;
};

}  // namespace gossamer::apps
