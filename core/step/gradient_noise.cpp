#include "core/step/gradient_noise.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/random.hpp"
#include "core/bucket/host_values.hpp"

namespace gossamer {
namespace {

/// The part of the averages that stays when a new sample comes.
constexpr double kMemory = 0.9;
/// A sample has one element of so many, within these bounds.
constexpr std::int64_t kSampledOf = 256;
constexpr std::int64_t kLeastNumel = 1024;
constexpr std::int64_t kMostNumel = 16384;

double square(double x) { return x * x; }

}  // namespace

struct GradientNoise::Sample {
  /// Neighbours within one parameter.
  struct Run {
    std::int64_t parameter = 0;
    std::int64_t offset = 0;
    std::int64_t numel = 0;
    /// The copy in `copies`. Null data: the parameter has no gradient.
    Block copy = {};
  };

  /// In rising order of parameters.
  std::vector<Run> runs;
  /// Host memory, kRunNumel elements of any type for each run.
  Buffer copies;
  /// Float32: kRunNumel elements for each run, then the squared norm of these.
  Buffer message;
  Buffer sum;
  bool is_started = false;

  /// Writes the message. Called when all copies have arrived.
  void write_message() const {
    const std::span<float> values = message.block().as<float>();
    std::ranges::fill(values, 0.0F);
    double squares = 0.0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].copy.data == nullptr) continue;
      const std::size_t first = i * static_cast<std::size_t>(kRunNumel);
      for (std::int64_t e = 0; e < runs[i].numel; ++e) {
        float& value = values[first + static_cast<std::size_t>(e)];
        value = static_cast<float>(host_value(runs[i].copy, e));
        squares += square(static_cast<double>(value));
      }
    }
    values.back() = static_cast<float>(squares);
  }
};

GradientNoise::GradientNoise(Stream& stream, std::vector<std::int64_t> numels)
    : stream_(stream),
      numels_(std::move(numels)),
      numel_(std::accumulate(numels_.begin(), numels_.end(), std::int64_t{0})) {
  const std::int64_t wanted =
      std::min(std::clamp(numel_ / kSampledOf, kLeastNumel, kMostNumel), numel_);
  num_runs_ = (wanted + kRunNumel - 1) / kRunNumel;
}

void GradientNoise::begin(std::int64_t step) {
  if (!sample_ || sample_->is_started) {
    const std::int64_t numel = num_runs_ * kRunNumel;
    sample_ =
        std::make_shared<Sample>(Sample{.runs = {},
                                        .copies = stream_.allocate_host(numel, DType::kFloat64),
                                        .message = Buffer(numel + 1, DType::kFloat32),
                                        .sum = Buffer(numel + 1, DType::kFloat32)});
  }
  sample_->runs.clear();
  Random random(static_cast<std::uint64_t>(step));
  std::int64_t parameter = 0;
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < num_runs_; ++i) {
    const std::int64_t begin = numel_ * i / num_runs_;
    const std::int64_t width = numel_ * (i + 1) / num_runs_ - begin;
    const std::int64_t at = begin + random.below(std::max(width - kRunNumel, std::int64_t{0}) + 1);
    while (at >= first + numels_[static_cast<std::size_t>(parameter)]) {
      first += numels_[static_cast<std::size_t>(parameter++)];
    }
    const std::int64_t left = first + numels_[static_cast<std::size_t>(parameter)] - at;
    sample_->runs.push_back(
        {.parameter = parameter, .offset = at - first, .numel = std::min(left, kRunNumel)});
  }
}

void GradientNoise::add(std::int64_t parameter, const ConstBlock& gradient) {
  const auto runs = std::ranges::equal_range(sample_->runs, parameter, {}, &Sample::Run::parameter);
  for (Sample::Run& run : runs) {
    const std::int64_t place = &run - sample_->runs.data();
    // Each run has room for elements of the widest type.
    const Block room = part_of(sample_->copies.block(), place * kRunNumel, kRunNumel);
    run.copy = {room.data, run.numel, gradient.dtype};
    stream_.copy(run.copy, part_of(gradient, run.offset, run.numel));
  }
}

void GradientNoise::start(Communicator& communicator) {
  sample_->is_started = true;
  result_ = {.num_ranks = communicator.size()};
  OpContext context{.label = {.what = "sample of gradients"},
                    .owner = sample_,
                    .ready = stream_.record(),
                    .prepare = [sample = sample_.get()]() -> EventPtr {
                      sample->write_message();
                      return nullptr;
                    }};
  request_ = communicator.all_reduce_sum(sample_->message.block(), sample_->sum.block(),
                                         std::move(context));
}

void GradientNoise::drain() {
  if (!request_.pending()) return;
  request_.wait();
  const std::span<const float> sum = sample_->sum.block().as<float>();
  const auto n = static_cast<double>(result_.num_ranks);
  for (const float value : sum.first(sum.size() - 1)) {
    result_.mean += square(static_cast<double>(value) / n);
  }
  result_.own = static_cast<double>(sum.back()) / n;
}

void GradientNoise::finish() {
  drain();
  const Lengths found = std::exchange(result_, {});
  if (found.num_ranks == 0 || !std::isfinite(found.own) || !std::isfinite(found.mean)) return;
  average_.own = kMemory * average_.own + found.own;
  average_.mean = kMemory * average_.mean + found.mean;
  average_.num_ranks = found.num_ranks;
}

void GradientNoise::drop() {
  // The operation keeps what it uses.
  request_ = {};
  result_ = {};
}

double GradientNoise::ratio(std::int64_t num_accumulated) const {
  const auto n = static_cast<double>(average_.num_ranks);
  if (n < 2.0 || average_.own == 0.0) return 1.0;
  // The squared norm of the gradient's noise, and of the gradient without noise.
  const double noise =
      std::clamp((average_.own - average_.mean) * n / (n - 1.0), 0.0, average_.own);
  const double signal = average_.own - noise;
  const double left = noise / static_cast<double>(num_accumulated);
  return std::sqrt((signal + left) / (signal + left / n));
}

void GradientNoise::visit(StateVisitor& visitor) {
  visitor.number("run/gradient_noise/own", average_.own);
  visitor.number("run/gradient_noise/mean", average_.mean);
  visitor.number("run/gradient_noise/ranks", average_.num_ranks);
  visitor.number("run/gradient_noise/new_own", result_.own);
  visitor.number("run/gradient_noise/new_mean", result_.mean);
  visitor.number("run/gradient_noise/new_ranks", result_.num_ranks);
}

}  // namespace gossamer
