#include "core/trace/step_timeline.hpp"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/whole_file.hpp"
#include "core/trace/timeline_file.hpp"

namespace gossamer {
namespace {

// The clocks are compared while nothing is in flight. After that a step without a wait follows, and
// one more, so that the recorded steps are ordinary ones.
constexpr std::int64_t kLeadSteps = 2;
// all_gather() takes less than 2 GiB, and a span is at most about 300 bytes of text.
constexpr std::size_t kMostSpansOfAll = (std::size_t{1} << 30U) / 300;

/// The spans that each rank has room for.
std::size_t capacity_of(const StepTimeline::Config& config, int num_ranks) {
  return std::min(config.capacity, kMostSpansOfAll / static_cast<std::size_t>(num_ranks));
}

/// What the file calls this rank.
std::string name_of(Communicator& communicator) {
  const int rank = own_world_rank(communicator);
  Elastic* const elastic = communicator.elastic();
  if (elastic == nullptr) return concat("rank ", rank);
  const std::vector<std::int64_t> members = elastic->membership().members;
  return concat("rank ", rank, ", member ", members.at(static_cast<std::size_t>(rank)));
}

}  // namespace

std::optional<TimelineSteps> parse_timeline_steps(std::string_view text) {
  const std::size_t colon = text.find(':');
  TimelineSteps steps;
  const bool is_good = colon != text.npos && parse_whole(text.substr(0, colon), steps.begin) &&
                       parse_whole(text.substr(colon + 1), steps.end) && steps.begin >= 0 &&
                       steps.begin < steps.end;
  return is_good ? std::optional(steps) : std::nullopt;
}

TimelineSteps default_timeline_steps(std::int64_t total) {
  const TimelineSteps usual;
  if (total >= usual.end) return usual;
  return {.begin = std::min(usual.begin, total / 2), .end = std::max<std::int64_t>(total, 1)};
}

StepTimeline::StepTimeline(Communicator& communicator, Config config)
    : communicator_(communicator),
      config_(std::move(config)),
      timeline_(
          std::make_shared<Timeline>(capacity_of(config_, communicator.size()), config_.clock)) {}

void StepTimeline::enter_world(std::int64_t num_steps) {
  num_steps_ = num_steps;
  bool has_clock = first_clock_.has_value();
  std::istringstream first(communicator_
                               .all_gather(concat(config_.steps.begin, " ", config_.steps.end, " ",
                                                  has_clock, " ", is_written_))
                               .front());
  first >> config_.steps.begin >> config_.steps.end >> has_clock >> is_written_;
  first_clock_.reset();
  // Rank 0 may be another one.
  if (has_clock && !is_written_) first_clock_ = read_clock_offset(communicator_, config_.clock);
}

std::string StepTimeline::before_step(std::int64_t step, const std::function<void()>& drain) {
  if (is_written_) return "";
  if (num_steps_ >= config_.steps.end) return write(drain);
  if (!first_clock_ && num_steps_ + kLeadSteps >= config_.steps.begin) {
    drain();
    first_clock_ = read_clock_offset(communicator_, config_.clock);
    std::error_code ignored;
    // A device, or a link to one, stays.
    const auto kind = std::filesystem::symlink_status(config_.path, ignored).type();
    if (communicator_.rank() == 0 && kind == std::filesystem::file_type::regular) {
      std::filesystem::remove(config_.path, ignored);
    }
  }
  if (num_steps_ >= config_.steps.begin) timeline_->begin_step(step);
  ++num_steps_;
  return "";
}

std::string StepTimeline::finish(const std::function<void()>& drain) {
  if (is_written_) return "";
  if (num_steps_ > config_.steps.begin) return write(drain);
  is_written_ = true;
  if (communicator_.rank() != 0) return "";
  return concat("there is no timeline: the run has ended after ", num_steps_,
                " steps, and the recording begins after ", config_.steps.begin);
}

void StepTimeline::advance(std::optional<std::int64_t> step, const std::function<void()>& drain,
                           const Logger& logger) {
  try {
    const std::string text = step ? before_step(*step, drain) : finish(drain);
    if (!text.empty()) logger.info(text);
  } catch (const CheckpointError& error) {
    logger.warning(concat("the timeline could not be written: ", error.what()));
  }
}

std::string StepTimeline::write(const std::function<void()>& drain) {
  timeline_->pause();
  drain();
  const ClockReading last = read_clock_offset(communicator_, config_.clock);
  const ClockMap clock(first_clock_.value_or(last), last);
  const std::vector<std::string> ranks = communicator_.all_gather(
      rank_trace(own_world_rank(communicator_), name_of(communicator_), *timeline_, clock));
  is_written_ = true;
  if (communicator_.rank() != 0) return "";
  const MergedTrace trace = merge_traces(ranks, config_.about);
  // If this fails, so does the file itself, with a better message.
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(config_.path).parent_path(), ignored);
  write_whole_file(config_.path, trace.json, /*sync=*/false);
  std::string text =
      concat("the timeline of ", std::min(num_steps_, config_.steps.end) - config_.steps.begin,
             " steps is in ", config_.path, ": open it in https://ui.perfetto.dev");
  if (trace.num_dropped > 0) {
    text += concat("; ", trace.num_dropped, " of ", trace.num_dropped + trace.num_spans,
                   " spans found no room, so record fewer steps");
  }
  return text;
}

}  // namespace gossamer
