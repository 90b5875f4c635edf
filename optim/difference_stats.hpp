#pragma once
// The differences between this rank and other ranks that the updates of a block have seen, for
// codecs with a grid.
//
// Passes on processors add to a DifferenceStats directly. Kernels add to memory of their device,
// and collect() takes these sums over in the order of the stream, so that no thread waits for the
// device.
//
// Thread safety: several threads may add at once.

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/buffer.hpp"
#include "base/stream.hpp"

namespace gossamer {

/// What kernels add to, in the memory of a device.
struct DeviceDifferences {
  /// The bits of the largest difference, a float >= 0. As integers, such bits are in the order of
  /// their floats.
  std::uint32_t largest = 0;
  std::uint32_t unused = 0;
  std::uint64_t num_wide = 0;
};

class DifferenceStats {
 public:
  /// Makes figures of passes on processors alone.
  DifferenceStats() = default;
  /// Makes figures of the passes of a stream.
  explicit DifferenceStats(Stream& stream);
  DifferenceStats(const DifferenceStats&) = delete;
  DifferenceStats& operator=(const DifferenceStats&) = delete;
  ~DifferenceStats() = default;

  /// `difference` >= 0. `num_wide`: see DifferenceRange.
  void add(float difference, std::int64_t num_wide);
  [[nodiscard]] float largest() const { return largest_.load(); }
  /// largest(), which starts again from 0.
  float take_largest() { return largest_.exchange(0.0F); }
  /// The sum of DifferenceRange::num_wide, which starts again from 0.
  std::int64_t take_num_wide() { return num_wide_.exchange(0); }

  /// What kernels add to; null on processors.
  [[nodiscard]] DeviceDifferences* on_device() const {
    return static_cast<DeviceDifferences*>(device_.block().data);
  }

 private:
  friend void collect(Stream& stream, const std::shared_ptr<DifferenceStats>& stats);

  std::atomic<float> largest_ = 0.0F;
  std::atomic<std::int64_t> num_wide_ = 0;
  /// One DeviceDifferences each; empty on processors. Copies of `device_` go to `host_`.
  Buffer device_;
  Buffer host_;
};

/// Adds what the stream's kernels have seen so far to `stats`, as work on the stream. Work that the
/// stream gets later, and threads that have waited for it, see the sums. Does nothing on
/// processors.
void collect(Stream& stream, const std::shared_ptr<DifferenceStats>& stats);

}  // namespace gossamer
