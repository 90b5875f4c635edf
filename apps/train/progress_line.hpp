#pragma once
// What a person sees of a running training: one line that is written over on a terminal, plain log
// lines elsewhere.

#include <cstdint>
#include <optional>
#include <string>

#include "base/log.hpp"

namespace gossamer::apps {

struct ProgressState {
  std::int64_t step = 0;
  std::int64_t total_steps = 0;
  double loss = 0.0;
  double lr = 0.0;
  double samples_per_s = 0.0;
  double seconds_left = 0.0;
  /// The last one measured.
  std::optional<double> consensus_distance;
};

std::string to_string(const ProgressState& state);
/// `3:07`, or `1:02:03` from an hour on.
std::string format_duration(double seconds);

class ProgressLine {
 public:
  /// `mode`: `bar`, `lines`, or `auto`: a bar when stderr is a terminal.
  ProgressLine(const std::string& mode, Logger logger);

  void show(const ProgressState& state) { show_line(to_string(state)); }
  void show_line(const std::string& line);
  /// Ends the bar's line, so that what follows starts on a new one.
  void end_line();
  [[nodiscard]] bool is_bar() const { return bar_; }

 private:
  bool bar_;
  bool line_open_ = false;
  Logger logger_;
};

}  // namespace gossamer::apps
