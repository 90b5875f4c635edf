#include "apps/lab/bench/kernel_bench.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "apps/lab/bench/statistics.hpp"
#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "optim/block_update.hpp"
#include "optim/convert.hpp"
#include "optim/registry.hpp"
#include "optim/summands.hpp"

namespace gossamer::apps {
namespace {

using Clock = std::chrono::steady_clock;

template <class Work>
double seconds_of(const Work& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A float32 buffer on the stream's device with numbers up to `bound`.
Buffer filled(Stream& stream, std::int64_t numel, std::uint64_t number, double bound) {
  // Hundreds of millions of numbers are needed, and only their size matters, so cheap ones will do.
  Random random(1, number);
  std::vector<float> pattern(4099);
  for (float& value : pattern) value = static_cast<float>(random.uniform(-bound, bound));
  Buffer buffer = stream.allocate(numel, DType::kFloat32);
  const Buffer host = stream.on_host() ? buffer : Buffer(numel, DType::kFloat32);
  std::size_t i = 0;
  for (float& value : host.block().as<float>()) {
    value = pattern[i];
    i = i + 1 == pattern.size() ? 0 : i + 1;
  }
  if (!stream.on_host()) {
    stream.copy(buffer.block(), host.block());
    stream.synchronize();
  }
  return buffer;
}

Buffer converted(Stream& stream, Buffer from, DType dtype) {
  if (from.block().dtype == dtype) return from;
  Buffer to = stream.allocate(from.block().numel, dtype);
  enqueue_convert(stream, to.block(), from.block());
  stream.synchronize();
  return to;
}

/// A grid with room for differences of 2 and more.
Grid grid_of(const MixingCodec& codec) {
  const double steps = codec.needs_grid() ? codec.most_steps() : 1.0;
  return {.exponent = static_cast<int>(std::ceil(std::log2(2.0 / steps))), .seed = 1};
}

/// The codec of updates; null: none.
const MixingCodec* mixing_of(const KernelBenchOptions& options) {
  return options.codec == nullptr ? nullptr : options.codec->mixing();
}

/// Throws ConfigError for a codec that the pass cannot take.
void check_codec(const KernelBenchOptions& options) {
  const bool updates = options.pass == KernelPass::kUpdate;
  if (!updates && options.codec == nullptr) {
    throw ConfigError("the encoding for sums needs a codec; take int8, or another one than fp32");
  }
  if (!updates || options.codec == nullptr || mixing_of(options) != nullptr) return;
  throw ConfigError(concat("the codec ", options.codec->name(),
                           " encodes sums alone, and an update mixes blocks; take int8 or another "
                           "codec of gossip, or the pass encode or feedback"));
}

/// The encoded form of a block of the stream's device.
Buffer encoded(Stream& stream, const Buffer& from, const MixingCodec& codec) {
  Buffer to = stream.allocate(codec.encoded_bytes(from.block().numel), DType::kUInt8);
  enqueue_encode(stream, {.codec = &codec, .own = to.block(), .next_grid = grid_of(codec)},
                 from.block());
  stream.synchronize();
  return to;
}

/// The number of elements of a bucket.
std::int64_t num_elements(const KernelBenchOptions& options) {
  const double numel = options.bucket_mib * 1024.0 * 1024.0 / sizeof(float);
  if (!(numel >= 1.0 && numel <= 1e12) || options.buckets < 1 || options.per_launch < 1 ||
      options.cycles < 1) {
    throw ConfigError("buckets, their size and the number of cycles must be more than 0");
  }
  return static_cast<std::int64_t>(numel);
}

/// The rows of a nearly square matrix.
std::int64_t rows_of_matrix(std::int64_t numel) {
  std::int64_t rows = 1;
  while (numel % (2 * rows) == 0 && 4 * rows * rows <= numel) rows *= 2;
  return rows;
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
      pool_(options.threads),
      stream_(make_stream(options.device)),
      yardstick_(num_elements(options), options.buckets, pool_, options.simd) {
  check_codec(options);
  const std::int64_t numel = num_elements(options);
  const std::int64_t rows = rows_of_matrix(numel);
  const std::vector<ParameterInfo> parameters = {{.name = "parameter",
                                                  .shape = {rows, numel / rows},
                                                  .dtype = options.model,
                                                  .weight_decay = 0.1}};
  const std::vector<std::int64_t> order = {0};
  const BucketSpec spec = plan_buckets(parameters, order, numel * 4).buckets.front();
  for (int b = 0; b < options.buckets; ++b) {
    const auto number = static_cast<std::uint64_t>(b) * 3;
    Bucket::Memory memory{.model = {filled(*stream_, spec.numel, number, 1.0)}};
    if (spec.has_master()) {
      memory.model.rounded = converted(*stream_, memory.model.parameters, spec.model_dtype);
    }
    buckets_.emplace_back(b, spec, parameters, std::move(memory), *optimizer_, *stream_);
    gradients_.push_back(
        converted(*stream_, filled(*stream_, numel, number + 1, 1e-2), spec.model_dtype));
    inboxes_.push_back(filled(*stream_, spec.numel, number + 2, 1.0));
    if (options.pass != KernelPass::kUpdate) {
      own_.push_back(stream_->allocate(options.codec->summand_bytes(spec.numel), DType::kUInt8));
    } else if (const MixingCodec* const codec = mixing_of(options)) {
      own_.push_back(encoded(*stream_, buckets_.back().parameters(), *codec));
      inboxes_.back() = encoded(*stream_, inboxes_.back(), *codec);
    }
  }
  if (!stream_->on_host()) {
    for (int i = 0; i < 2; ++i) {
      copied_.push_back(stream_->allocate(options.copy_bytes, DType::kUInt8));
    }
  }
}

Intake KernelBench::intake_of(const Bucket& bucket) const {
  const auto place = static_cast<std::size_t>(bucket.index());
  Intake intake{.keep = 0.5, .inboxes = {{inboxes_[place].block(), 0.5}}};
  const MixingCodec* const codec = mixing_of(options_);
  if (codec == nullptr) return intake;
  intake.keep = 1.0;
  const Grid grid = grid_of(*codec);
  intake.exchange.coding = {.codec = codec,
                            .own = own_[place].block(),
                            .decodes = true,
                            .encodes = true,
                            .grid = grid,
                            .next_grid = grid};
  return intake;
}

PassTraffic KernelBench::traffic(std::int64_t step) const {
  constexpr std::int64_t kValue = sizeof(float);
  switch (options_.pass) {
    case KernelPass::kEncode:
      return {.read = kValue};
    case KernelPass::kFeedback:
      // The second pass reads the values again, and changes the error.
      return {.read = 2 * kValue, .changed = kValue};
    case KernelPass::kUpdate:
      break;
  }
  return optimizer_->least_traffic(step, options_.model);
}

double KernelBench::least_bytes(std::int64_t step) const {
  const auto plain = static_cast<double>(traffic(step).bytes());
  if (options_.codec == nullptr) return plain;
  const auto numel = static_cast<double>(buckets_.front().spec().numel);
  const auto encoded = static_cast<double>(own_.front().block().bytes()) / numel;
  switch (options_.pass) {
    case KernelPass::kEncode:
      return plain + encoded;
    case KernelPass::kFeedback:
      return plain + 2.0 * encoded;
    case KernelPass::kUpdate:
      break;
  }
  return plain - sizeof(float) + 3.0 * encoded;
}

void KernelBench::enqueue_sum(const Bucket& bucket) {
  const auto place = static_cast<std::size_t>(bucket.index());
  SummandWork work{.codec = *options_.codec,
                   .values = bucket.parameters().block(),
                   .message = own_[place].block(),
                   .numel = bucket.spec().numel};
  enqueue_summands(*stream_, work, options_.simd);
  if (options_.pass == KernelPass::kEncode) return;
  work.said = std::exchange(work.message, {});
  work.residual = inboxes_[place].block();
  enqueue_summands(*stream_, work, options_.simd);
}

void KernelBench::enqueue(std::span<Bucket> some) {
  if (options_.pass != KernelPass::kUpdate) {
    for (const Bucket& bucket : some) enqueue_sum(bucket);
    return;
  }
  std::vector<BlockUpdate> updates;
  for (Bucket& bucket : some) {
    bucket.begin_step();
    bucket.offer(0, gradients_[static_cast<std::size_t>(bucket.index())].block());
    updates.push_back(bucket.begin_update(
        {.lr = 1e-3, .intake = intake_of(bucket), .simd = options_.simd, .pool = &pool_}));
  }
  enqueue_updates(*stream_, *optimizer_, std::move(updates));
}

std::vector<double> KernelBench::update_cycle() {
  std::vector<double> seconds(buckets_.size());
  const auto cycle = static_cast<double>(optimizer_->cycle());
  const auto per_launch = static_cast<std::size_t>(options_.per_launch);
  const auto whole = [&] {
    for (std::int64_t step = 0; step < optimizer_->cycle(); ++step) {
      for (std::size_t first = 0; first < buckets_.size(); first += per_launch) {
        const std::size_t count = std::min(per_launch, buckets_.size() - first);
        const double all_s =
            seconds_of([&] { enqueue(std::span(buckets_).subspan(first, count)); });
        for (std::size_t b = first; stream_->immediate() && b < first + count; ++b) {
          seconds[b] += all_s / cycle / static_cast<double>(count);
        }
      }
      ++num_updates_;
    }
    stream_->synchronize();
  };
  const double all_s = seconds_of(whole);
  if (!stream_->immediate()) {
    std::ranges::fill(seconds, all_s / cycle / static_cast<double>(buckets_.size()));
  }
  return seconds;
}

double KernelBench::copy_all() {
  // Repeat for about as long as an update of all buckets takes, so that clocks and the final wait
  // have the same weight in both.
  constexpr int kRepeats = 8;
  const double seconds = seconds_of([&] {
    for (int i = 0; i < kRepeats; ++i) stream_->copy(copied_[1].block(), copied_[0].block());
    stream_->synchronize();
  });
  return seconds / (2.0 * kRepeats * static_cast<double>(options_.copy_bytes));
}

double KernelBench::least_seconds_per_element() {
  // The second cycle counts, because a parameter's very first step may differ from all later ones.
  const std::int64_t cycle = optimizer_->cycle();
  const double byte_s = stream_->on_host() ? 0.0 : copy_all();
  double seconds = 0.0;
  for (std::int64_t step = cycle + 1; step <= 2 * cycle; ++step) {
    const PassTraffic plain = traffic(step);
    const double bytes = least_bytes(step);
    // A pass over arrays has no encoded ones, so it counts in proportion.
    seconds += stream_->on_host() ? yardstick_.seconds_per_element(plain) * bytes /
                                        static_cast<double>(plain.bytes())
                                  : byte_s * bytes;
  }
  return seconds / static_cast<double>(cycle);
}

KernelFigures KernelBench::run() {
  KernelFigures figures{.numel = buckets_.front().spec().numel, .cycle = optimizer_->cycle()};
  for (std::int64_t step = figures.cycle + 1; step <= 2 * figures.cycle; ++step) {
    figures.least_bytes_per_element += least_bytes(step) / static_cast<double>(figures.cycle);
  }
  update_cycle();
  least_seconds_per_element();
  const auto numel = static_cast<double>(figures.numel);
  std::vector<double> updates;
  std::vector<double> yardsticks;
  std::vector<double> ratios;
  for (int k = 0; k < options_.cycles; ++k) {
    const std::vector<double> update_s = update_cycle();
    updates.insert(updates.end(), update_s.begin(), update_s.end());
    yardsticks.push_back(least_seconds_per_element() * numel);
    ratios.push_back(median(update_s) / yardsticks.back());
  }
  figures.ms = 1e3 * median(updates);
  figures.least_ms = 1e3 * median(yardsticks);
  figures.yardstick_gb_per_s = 1e-6 * figures.least_bytes_per_element * numel / figures.least_ms;
  figures.ratio_to_least = figures.ms / figures.least_ms;
  figures.ratio_interval = median_interval(ratios);
  return figures;
}

}  // namespace gossamer::apps
