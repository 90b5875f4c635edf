#include "optim/difference_stats.hpp"

#include <bit>

namespace gossamer {

DifferenceStats::DifferenceStats(Stream& stream) {
  if (stream.on_host()) return;
  constexpr std::int64_t kBytes = sizeof(DeviceDifferences);
  device_ = stream.allocate(kBytes, DType::kUInt8);
  host_ = stream.allocate_host(kBytes, DType::kUInt8);
}

void DifferenceStats::add(float difference, std::int64_t num_wide) {
  float seen = largest_.load(std::memory_order_relaxed);
  while (difference > seen && !largest_.compare_exchange_weak(seen, difference)) {
  }
  if (num_wide > 0) num_wide_.fetch_add(num_wide, std::memory_order_relaxed);
}

void collect(Stream& stream, const std::shared_ptr<DifferenceStats>& stats) {
  if (stats->on_device() == nullptr) return;
  stream.copy(stats->host_.block(), stats->device_.block());
  stream.zero(stats->device_.block());
  stream.run([stats] {
    const auto& seen = *static_cast<const DeviceDifferences*>(stats->host_.block().data);
    stats->add(std::bit_cast<float>(seen.largest), static_cast<std::int64_t>(seen.num_wide));
  });
}

}  // namespace gossamer
