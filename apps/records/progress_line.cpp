#include "apps/records/progress_line.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include <unistd.h>

#include "base/text.hpp"

namespace gossamer::apps {
std::string format_duration(double seconds) {
  const auto whole = static_cast<long long>(std::llround(seconds));
  std::array<char, 32> text{};
  if (whole >= 3600) {
    std::snprintf(text.data(), text.size(), "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60,
                  whole % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%lld:%02lld", whole / 60, whole % 60);
  }
  return text.data();
}

std::string to_string(const ProgressState& state) {
  std::array<char, 64> text{};
  std::string line = concat("step ", state.step);
  if (state.total_steps > 0) line += concat("/", state.total_steps);
  std::snprintf(text.data(), text.size(), "  loss %.4f  lr %.2e", state.loss, state.lr);
  line += text.data();
  if (std::isfinite(state.samples_per_s)) {
    std::snprintf(text.data(), text.size(), "  %.0f samples/s", state.samples_per_s);
    line += text.data();
  }
  if (state.consensus_distance) {
    std::snprintf(text.data(), text.size(), "  consensus %.3e", *state.consensus_distance);
    line += text.data();
  }
  if (state.total_steps > 0) line += concat("  left ", format_duration(state.seconds_left));
  return line;
}

ProgressLine::ProgressLine(const std::string& mode, Logger logger)
    : bar_(mode == "bar" || (mode == "auto" && isatty(STDERR_FILENO) != 0)),
      logger_(std::move(logger)) {}

void ProgressLine::show_line(const std::string& line) {
  if (!bar_) {
    logger_.info(line);
    return;
  }
  // \033[K clears what a longer line before has left.
  std::fprintf(stderr, "\r%s\033[K", line.c_str());
  std::fflush(stderr);
  line_open_ = true;
}

void ProgressLine::end_line() {
  if (!std::exchange(line_open_, false)) return;
  std::fputc('\n', stderr);
}

}  // namespace gossamer::apps
