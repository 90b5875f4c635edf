#include "apps/lab/study/study_progress.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

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
  std::array<char, 32> loss{};
  std::snprintf(loss.data(), loss.size(), "%.4f", state.loss);
  const double all = (static_cast<double>(num_runs_ - num_to_do_ + num_done_) + part) /
                     static_cast<double>(num_runs_);
  progress_.show_line(concat(progress_.is_bar() ? bar(all) + " " : "", "run ", number_, "/",
                             num_runs_, "  ", name_, "  step ", state.step, "/", state.total_steps,
                             "  loss ", loss.data(), "  left ", time_left(part)));
}

void StudyProgress::end(const StudyRow& row) {
  ++num_done_;
  if (progress_.is_bar()) return;
  last_line_ = Clock::now();
  std::array<char, 96> figures{};
  std::snprintf(figures.data(), figures.size(), "accuracy %.2f %%, consensus distance %.3e",
                100.0 * row.accuracy_mean_model, row.consensus_distance);
  progress_.show_line(concat("run ", number_, "/", num_runs_, "  ", name_,
                             "  done: ", figures.data(), "  left ", time_left(0.0)));
}

}  // namespace gossamer::apps
