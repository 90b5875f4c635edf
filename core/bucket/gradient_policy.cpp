#include "core/bucket/gradient_policy.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/registry.hpp"
#include "base/text.hpp"
#include "core/bucket/bucket_options.hpp"

namespace gossamer {
namespace {

constexpr std::array kClipModes = {
    NamedValue{"none", ClipMode::kNone},
    NamedValue{"per_bucket", ClipMode::kPerBucket},
    NamedValue{"global", ClipMode::kGlobal},
    NamedValue{"delayed_global", ClipMode::kDelayedGlobal},
};

constexpr std::array kRecipes = {
    NamedValue{"own", Recipe::kOwn},
    NamedValue{"allreduce", Recipe::kAllReduce},
};

constexpr std::array kNonFinite = {
    NamedValue{"abort", NonFinite::kAbort},
    NamedValue{"skip", NonFinite::kSkip},
};

void check_clipping(ClipMode mode, double norm) {
  if (mode == ClipMode::kNone || (std::isfinite(norm) && norm > 0.0)) return;
  throw ConfigError(
      concat("the norm that gradients are clipped to is ", norm, ", allowed: a number > 0"));
}

}  // namespace

std::vector<std::string> clip_mode_names() { return names_of(kClipModes); }
ClipMode clip_mode(std::string_view name) { return row_of(kClipModes, "clip mode", name).value; }
std::vector<std::string> nonfinite_names() { return names_of(kNonFinite); }
NonFinite nonfinite(std::string_view name) {
  return row_of(kNonFinite, "policy for non-finite gradients", name).value;
}

std::vector<std::string> recipe_names() { return names_of(kRecipes); }

void read_clipping(const Options& section, GradientOptions& gradients) {
  if (section.has("grad_clip_norm") && !section.has("grad_clip")) {
    section.fail("grad_clip_norm",
                 "is given without grad_clip, so that nothing would be clipped, allowed: both, as "
                 "with grad_clip: global, or none");
  }
  gradients.clip_mode = clip_mode(section.read(kGradClip));
  gradients.clip_norm = section.read(kGradClipNorm);
  gradients.recipe = read_recipe(section);
}

Recipe read_recipe(const Options& section) {
  return row_of(kRecipes, "recipe", section.read(kRecipe)).value;
}

GradientPolicy::GradientPolicy(const GradientOptions& options, Stream& stream,
                               std::int64_t num_entries, std::int64_t num_buckets)
    : options_(options),
      stream_(stream),
      squares_(stream.allocate(num_entries, DType::kFloat64)),
      flags_(stream.allocate(2, DType::kFloat64)),
      last_norm_(stream.allocate(1, DType::kFloat64)),
      report_(stream.allocate_host(num_entries + 1, DType::kFloat64)) {
  check_clipping(options.clip_mode, options.clip_norm);
  set_num_buckets(num_buckets);
  // A negative norm means that there has been no step.
  const Buffer none = stream.allocate_host(1, DType::kFloat64);
  none.block().as<double>()[0] = -1.0;
  stream.copy(last_norm_.block(), none.block());
  const Buffer no_flags = stream.allocate_host(2, DType::kFloat64);
  std::ranges::fill(no_flags.block().as<double>(), 0.0);
  stream.copy(flags_.block(), no_flags.block());
  stream.synchronize();
}

void GradientPolicy::set_num_buckets(std::int64_t num_buckets) {
  decisions_ =
      stream_.allocate(2 * num_buckets * std::int64_t{sizeof(GradientDecision)}, DType::kUInt8);
  num_buckets_ = num_buckets;
}

void GradientPolicy::set_clipping(ClipMode mode, double norm) {
  check_clipping(mode, norm);
  if (mode != options_.clip_mode) has_last_norm_ = false;
  options_.clip_mode = mode;
  options_.clip_norm = norm;
}

bool GradientPolicy::defers() const {
  return skips() || options_.clip_mode == ClipMode::kGlobal ||
         (options_.clip_mode == ClipMode::kDelayedGlobal && !has_last_norm_);
}

DecisionRule GradientPolicy::rule(double mean_factor) const {
  return {.clip_mode = options_.clip_mode,
          .clip_norm = options_.clip_norm * norm_factor_,
          .unit = scale_ * mean_factor};
}

const double* GradientPolicy::flag() const {
  return aborts() ? nullptr : flags_.block().as<double>().data() + 1;
}

void GradientPolicy::add_norms_of(Communicator& shards) {
  const Block squares = squares_.block();
  if (sums_.block().data == nullptr) sums_ = stream_.allocate(squares.numel, DType::kFloat64);
  shards
      .all_reduce_sum(squares, sums_.block(),
                      {.label = {.what = "norms of shards"},
                       .owner = both(squares_.owner(), sums_.owner()),
                       .ready = stream_.record()})
      .wait_on(stream_);
  stream_.copy(squares, sums_.block());
}

void GradientPolicy::decide_step(Communicator* communicator) {
  settled_ = true;
  if (!skips()) return;
  const Block mine = part_of(flags_.block(), 0, 1);
  const Block all = part_of(flags_.block(), 1, 1);
  if (communicator == nullptr) {
    return enqueue_flag(stream_, squares_.block(), all.as<double>().data());
  }
  enqueue_flag(stream_, squares_.block(), mine.as<double>().data());
  communicator
      ->all_reduce_sum(
          mine, all, {.label = {.what = "sum"}, .owner = flags_.owner(), .ready = stream_.record()})
      .wait_on(stream_);
}

const GradientDecision* GradientPolicy::decide(std::int64_t first_bucket,
                                               std::vector<ConstBlock> squares,
                                               double mean_factor) {
  return decide_by(rule(mean_factor), first_bucket, std::move(squares));
}

const GradientDecision* GradientPolicy::decide_unscaled(std::int64_t bucket,
                                                        const ConstBlock& squares) {
  return decide_by({}, num_buckets_ + bucket, {squares});
}

GradientDecision* GradientPolicy::decide_by(const DecisionRule& rule, std::int64_t place,
                                            std::vector<ConstBlock> squares) {
  auto* const decisions = static_cast<GradientDecision*>(decisions_.block().data) + place;
  if (options_.clip_mode != ClipMode::kPerBucket && settled_) {
    std::ranges::fill(squares, ConstBlock(squares_.block()));
  }
  enqueue_decisions(stream_, {.squares = std::move(squares),
                              .rule = rule,
                              .last_norm = last_norm_.block().as<double>().data(),
                              .flag = flag(),
                              .decisions = decisions});
  return decisions;
}

void GradientPolicy::visit(StateVisitor& visitor) {
  if (options_.clip_mode != ClipMode::kDelayedGlobal) return;
  const Buffer seen = stream_.allocate_host(1, DType::kFloat64);
  double& norm = seen.block().as<double>()[0];
  stream_.copy(seen.block(), last_norm_.block());
  stream_.synchronize();
  visitor.number("run/last_gradient_norm", norm);
  if (!visitor.loads()) return;
  stream_.copy(last_norm_.block(), seen.block());
  stream_.synchronize();
  has_last_norm_ = norm >= 0.0;
}

void GradientPolicy::end_step(double mean_factor) {
  if (options_.clip_mode == ClipMode::kDelayedGlobal) {
    enqueue_norm(stream_, squares_.block(), scale_ * mean_factor, flag(),
                 last_norm_.block().as<double>().data());
    has_last_norm_ = true;
  }
  settled_ = false;
  report_unit_ = scale_ * mean_factor;
  const std::int64_t num_entries = squares_.block().numel;
  stream_.copy(part_of(report_.block(), 0, num_entries), squares_.block());
  if (skips()) {
    stream_.copy(part_of(report_.block(), num_entries, 1), part_of(flags_.block(), 1, 1));
  }
  reported_ = stream_.record();
  // On other streams every step writes all squares anew.
  if (stream_.immediate()) std::ranges::fill(squares_.block().as<double>(), 0.0);
}

StepReport GradientPolicy::take_report() {
  if (const EventPtr reported = std::exchange(reported_, nullptr)) reported->wait();
  stream_.check();
  const std::span<const double> numbers = report_.block().as<double>();
  StepReport report{.skipped = skips() && numbers.back() != 0.0};
  const auto squares = numbers.first(numbers.size() - 1);
  const auto first = std::ranges::find_if(squares, [](double x) { return std::isnan(x); });
  if (first != squares.end()) report.nonfinite = first - squares.begin();
  report.norm = report_unit_ * std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
  return report;
}

bool holds_nonfinite(Stream& stream, const ConstBlock& block) {
  const std::array numels{block.numel};
  const Buffer squares = stream.allocate(1, DType::kFloat64);
  const Buffer scratch = stream.allocate(squares_scratch_numel(numels), DType::kFloat64);
  const Buffer seen = stream.allocate_host(1, DType::kFloat64);
  enqueue_squares(stream,
                  {.gradients = {block}, .squares = squares.block(), .scratch = scratch.block()});
  stream.copy(seen.block(), squares.block());
  stream.synchronize();
  return std::isnan(seen.block().as<double>()[0]);
}

}  // namespace gossamer
