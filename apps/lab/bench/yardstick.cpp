#include "apps/lab/bench/yardstick.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>

#include "apps/lab/bench/statistics.hpp"
#include "optim/sweep.hpp"

namespace gossamer::apps {
namespace {

constexpr std::int64_t kYardGrain = 1024;
// The yardstick asks for memory ahead as the sweep does, in blocks of the same size.
constexpr std::int64_t kYardBlock = internal::kMostInBlock;

std::size_t arrays_of(std::int64_t bytes) { return static_cast<std::size_t>((bytes + 3) / 4); }

std::vector<float*> starts_of(std::span<const Buffer> buffers) {
  std::vector<float*> starts;
  for (const Buffer& buffer : buffers) starts.push_back(buffer.block().as<float>().data());
  return starts;
}

/// sum = all arrays that are read or changed; changed *= factor; written = sum. Block by block,
/// with the sum in the first-level cache.
struct PassLoop {
  std::span<float* const> read;
  std::span<float* const> changed;
  std::span<float* const> written;
  PartRange range;
  float factor;

  [[gnu::always_inline]] void operator()() const {
    std::array<float, kYardBlock> sum;
    const float c = factor;
    for (std::int64_t first = range.first; first < range.last; first += kYardBlock) {
      const std::int64_t count = std::min(kYardBlock, range.last - first);
      sum.fill(0.0F);
      for (float* const array : read) {
        const float* const from = array + first;
        internal::prefetch_after(from);
#pragma GCC ivdep
        for (std::int64_t i = 0; i < count; ++i) sum[static_cast<std::size_t>(i)] += from[i];
      }
      for (float* const array : changed) {
        float* const x = array + first;
        internal::prefetch_after(x);
#pragma GCC ivdep
        for (std::int64_t i = 0; i < count; ++i) {
          sum[static_cast<std::size_t>(i)] += x[i];
          x[i] *= c;
        }
      }
      for (float* const array : written) {
        float* const to = array + first;
        internal::prefetch_after(to);
#pragma GCC ivdep
        for (std::int64_t i = 0; i < count; ++i) to[i] = sum[static_cast<std::size_t>(i)];
      }
      // The compiler must believe that the sum is read.
      asm volatile("" : : "r"(sum.data()) : "memory");
    }
  }
};

}  // namespace

Yardstick::Yardstick(std::int64_t numel, int num_sets, WorkerPool& pool, SimdPath simd)
    : numel_(numel), pool_(pool), simd_(simd), sets_(static_cast<std::size_t>(num_sets)) {}

void Yardstick::reserve(std::vector<Buffer>& buffers, std::size_t count) const {
  while (buffers.size() < count) {
    buffers.emplace_back(numel_, DType::kFloat32);
    // Writing gives the array memory of its own.
    std::ranges::fill(buffers.back().block().as<float>(), 1.0F);
  }
}

double Yardstick::time_pass(Arrays& arrays, std::size_t num_read, std::size_t num_changed,
                            std::size_t num_written) {
  reserve(arrays.read, num_read);
  reserve(arrays.changed, num_changed);
  reserve(arrays.written, num_written);
  const auto read = starts_of(std::span(arrays.read).first(num_read));
  const auto changed = starts_of(std::span(arrays.changed).first(num_changed));
  const auto written = starts_of(std::span(arrays.written).first(num_written));
  const float factor = factor_;
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  pool_.share(numel_, kYardGrain, [&](const PartRange& range) {
    run_on(simd_, PassLoop{read, changed, written, range, factor});
  });
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double Yardstick::seconds_per_element(const PassTraffic& traffic) {
  const std::size_t num_read = arrays_of(traffic.read);
  const std::size_t num_changed = arrays_of(traffic.changed);
  const std::size_t num_written = arrays_of(traffic.written);
  std::vector<double> seconds;
  for (Arrays& arrays : sets_) {
    seconds.push_back(time_pass(arrays, num_read, num_changed, num_written));
  }
  const PassTraffic measured{.read = 4 * static_cast<std::int64_t>(num_read),
                             .changed = 4 * static_cast<std::int64_t>(num_changed),
                             .written = 4 * static_cast<std::int64_t>(num_written)};
  return median(seconds) / static_cast<double>(numel_) * static_cast<double>(traffic.bytes()) /
         static_cast<double>(measured.bytes());
}

}  // namespace gossamer::apps
