#include "gossamer/apps/bench/kernel_bench.hpp"

#include <array>
#include <chrono>
#include <numeric>

#include "gossamer/apps/bench/statistics.hpp"
#include "gossamer/core/base/error.hpp"
#include "gossamer/core/base/random.hpp"
#include "gossamer/core/base/text.hpp"
#include "gossamer/optim/registry.hpp"

namespace gossamer::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kGrain = 1024;

template <class Work>
double seconds_of(const Work& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// x <- factor * x.
struct ScaleLoop {
  float* values;
  std::int64_t numel;
  float factor;
  [[gnu::always_inline]] void operator()() const {
    float* const x = values;
    const float c = factor;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < numel; ++i) x[i] *= c;
  }
};

void fill(const Block& block, std::uint64_t stream, double bound) {
  // Cheap numbers: hundreds of millions are needed, and only their size matters.
  Random random(1, stream);
  std::vector<float> pattern(4099);
  for (float& value : pattern) value = static_cast<float>(random.uniform(-bound, bound));
  std::size_t i = 0;
  for (float& value : block.as<float>()) {
    value = pattern[i];
    i = i + 1 == pattern.size() ? 0 : i + 1;
  }
}

}  // namespace

bool accumulates(std::string_view optimizer) {
  return canonical_name(optimizer).starts_with("accum");
}

std::string options_yaml(std::string_view optimizer, std::int64_t accum_iter) {
  return accumulates(optimizer) ? concat("accum_iter: ", accum_iter) : "";
}

KernelBench::KernelBench(const KernelBenchOptions& options)
    : options_(options),
      optimizer_(make_optimizer(options.optimizer, Options::parse(options.optimizer_options))),
      pool_(options.threads) {
  const double numel_wanted = options.bucket_mib * 1024.0 * 1024.0 / sizeof(float);
  if (!(numel_wanted >= 1.0 && numel_wanted <= 1e12) || options.buckets < 1 || options.cycles < 1) {
    throw ConfigError("buckets, their size and the number of cycles must be more than 0");
  }
  const auto numel = static_cast<std::int64_t>(numel_wanted);
  const std::vector<ParameterInfo> parameters = {
      {.name = "parameter", .shape = {numel}, .weight_decay = 0.1}};
  const std::vector<std::int64_t> order = {0};
  const BucketSpec spec = plan_buckets(parameters, order, numel * 4).buckets.front();
  for (int b = 0; b < options.buckets; ++b) {
    buckets_.emplace_back(b, spec, parameters,
                          Bucket::Memory{stream_.allocate(spec.numel, DType::kFloat32), {}},
                          optimizer_->num_states(), stream_);
    const auto stream = static_cast<std::uint64_t>(b) * 3;
    fill(buckets_.back().parameters(), stream, 1.0);
    fill(gradients_.emplace_back(numel, DType::kFloat32).block(), stream + 1, 1e-2);
    fill(inboxes_.emplace_back(spec.numel, DType::kFloat32).block(), stream + 2, 1.0);
  }
}

std::vector<double> KernelBench::update_cycle() {
  std::vector<double> seconds(buckets_.size());
  const auto cycle = static_cast<double>(optimizer_->cycle());
  for (std::int64_t step = 0; step < optimizer_->cycle(); ++step) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      Bucket& bucket = buckets_[b];
      bucket.begin_step();
      bucket.offer(0, gradients_[b].block());
      const std::array inboxes = {Inbox{inboxes_[b].block(), 0.5}};
      const UpdateContext context{
          .lr = 1e-3, .keep = 0.5, .inboxes = inboxes, .simd = options_.simd, .pool = &pool_};
      seconds[b] += seconds_of([&] { bucket.update(*optimizer_, context); }) / cycle;
    }
    ++num_updates_;
  }
  return seconds;
}

std::vector<double> KernelBench::scale_all() {
  // Up and down in turn, so that nothing grows or vanishes.
  const float factor = num_scalings_++ % 2 == 0 ? 1.0009765625F : 0.9990243902F;
  std::vector<double> seconds;
  for (const Bucket& bucket : buckets_) {
    auto* const values = static_cast<float*>(bucket.parameters().data);
    const std::int64_t numel = bucket.parameters().numel;
    const auto scale = [&](const PartRange& range) {
      run_on(options_.simd, ScaleLoop{values + range.first, range.last - range.first, factor});
    };
    seconds.push_back(seconds_of([&] { pool_.share(numel, kGrain, scale); }));
  }
  return seconds;
}

KernelFigures KernelBench::run() {
  KernelFigures figures{.numel = buckets_.front().spec().numel, .cycle = optimizer_->cycle()};
  // Of the second cycle: a first step may differ from all others of its kind.
  for (std::int64_t step = figures.cycle + 1; step <= 2 * figures.cycle; ++step) {
    figures.least_bytes_per_element +=
        static_cast<double>(optimizer_->least_bytes(step, DType::kFloat32)) /
        static_cast<double>(figures.cycle);
  }
  update_cycle();
  scale_all();
  const double least_over_scale = figures.least_bytes_per_element / (2.0 * sizeof(float));
  std::vector<double> updates;
  std::vector<double> scalings;
  std::vector<double> ratios;
  for (int k = 0; k < options_.cycles; ++k) {
    const std::vector<double> update_s = update_cycle();
    const std::vector<double> scale_s = scale_all();
    updates.insert(updates.end(), update_s.begin(), update_s.end());
    scalings.insert(scalings.end(), scale_s.begin(), scale_s.end());
    ratios.push_back(median(update_s) / (median(scale_s) * least_over_scale));
  }
  const double scale_s = median(scalings);
  figures.ms = 1e3 * median(updates);
  figures.least_ms = 1e3 * scale_s * least_over_scale;
  figures.scale_gb_per_s = 2e-9 * sizeof(float) * static_cast<double>(figures.numel) / scale_s;
  figures.ratio_to_least = figures.ms / figures.least_ms;
  figures.ratio_interval = median_interval(ratios);
  return figures;
}

}  // namespace gossamer::apps
