#pragma once
// The progress of a running training for a person: one line on stderr that is overwritten (a bar),
// or plain log lines. Not thread safe.

#include <cstdint>
#include <optional>
#include <string>

#include "base/log.hpp"

namespace gossamer::apps {

struct ProgressState {
  std::int64_t step = 0;
  /// 0: not known.
  std::int64_t total_steps = 0;
  /// Mean since the last record, over all ranks.
  double loss = 0.0;
  double lr = 0.0;
  /// All ranks together; not finite: not known.
  double samples_per_s = 0.0;
  /// Counts where the number of steps is known.
  double seconds_left = 0.0;
  /// The last value measured.
  std::optional<double> consensus_distance;
};

std::string to_string(const ProgressState& state);
/// `3:07`, or `1:02:03` from an hour on.
std::string format_duration(double seconds);

class ProgressLine {
 public:
  /// `mode` is `bar`, `lines` or `auto`: a bar if stderr is a terminal.
  ProgressLine(const std::string& mode, Logger logger);

  void show(const ProgressState& state) { show_line(to_string(state)); }
  void show_line(const std::string& line);
  /// Ends the bar's line, so that later output starts on a new line.
  void end_line();
  [[nodiscard]] bool is_bar() const { return bar_; }

 private:
  bool bar_;
  bool line_open_ = false;
  Logger logger_;
};

}  // namespace gossamer::apps
