#include "apps/lab/study/study_progress.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace gossamer::apps {
namespace {

constexpr std::chrono::seconds kBetweenLines{10};
constexpr std::int64_t kBarWidth = 20;

/// `[#####...............]`
std::string bar(double part) {
  const auto filled = static_cast<std::size_t>(
      std::clamp<double>(part * static_cast<double>(kBarWidth), 0.0, kBarWidth));
  return concat("[", std::string(filled, '#'), std::string(kBarWidth - filled, '.'), "]");
}

}  // namespace

StudyProgress::StudyProgress(const Setup& setup)
    : progress_(setup.mode, setup.logger), num_runs_(setup.num_runs), num_to_do_(setup.num_to_do) {}

std::string StudyProgress::time_left(double part) const {
  const double done = static_cast<double>(num_done_) + part;
  if (done <= 0.0) return "?";
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
  return format_duration(elapsed / done * (static_cast<double>(num_to_do_) - done));
}

void StudyProgress::begin(std::int64_t number, const std::string& name) {
  number_ = number;
  name_ = name;
}

void StudyProgress::show(const ProgressState& state) {
  if (!progress_.is_bar() && Clock::now() - last_line_ < kBetweenLines) return;
  last_line_ = Clock::now();
  const double part = static_cast<double>(state.step) / static_cast<double>(state.total_steps);
  const double all = (static_cast<double>(num_runs_ - num_to_do_ + num_done_) + part) /
                     static_cast<double>(num_runs_);
  progress_.show_line(concat(progress_.is_bar() ? bar(all) + " " : "", "run ", number_, "/",
                             num_runs_, "  ", name_, "  step ", state.step, "/", state.total_steps,
                             "  loss ", with_digits(state.loss, 4), "  left ", time_left(part)));
}

void StudyProgress::end(const StudyRow& row) {
  ++num_done_;
  if (progress_.is_bar()) return;
  last_line_ = Clock::now();
  progress_.show_line(concat("run ", number_, "/", num_runs_, "  ", name_, "  done: accuracy ",
                             with_digits(100.0 * row.accuracy_mean_model, 2),
                             " %, consensus distance ",
                             with_digits(row.consensus_distance, 3, std::chars_format::scientific),
                             "  left ", time_left(0.0)));
}

}  // namespace gossamer::apps
