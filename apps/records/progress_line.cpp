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
  std::string line = concat("step ", state.step);
  if (state.total_steps > 0) line += concat("/", state.total_steps);
  line += concat("  loss ", with_digits(state.loss, 4), "  lr ",
                 with_digits(state.lr, 2, std::chars_format::scientific));
  if (std::isfinite(state.samples_per_s)) {
    line += concat("  ", with_digits(state.samples_per_s, 0), " samples/s");
  }
  if (state.consensus_distance) {
    line += concat("  consensus ",
                   with_digits(*state.consensus_distance, 3, std::chars_format::scientific));
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
