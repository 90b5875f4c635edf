#pragma once
// Log lines of one rank, on stderr. A Logger is a handle: copies write to the same place. Thread
// safe. spdlog is hidden behind this header because LibTorch ships another version of fmt.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gossamer {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

/// The names that log_level() accepts, mildest first.
std::vector<std::string> log_level_names();
/// Throws std::invalid_argument for a name that is not in log_level_names().
LogLevel log_level(std::string_view name);

class Logger {
 public:
  /// Writes nothing.
  Logger();
  /// `tag` stands in every line (`rank 2`); it may be empty.
  Logger(LogLevel level, std::string_view tag);

  void debug(std::string_view message) const;
  void info(std::string_view message) const;
  void warning(std::string_view message) const;
  void error(std::string_view message) const;

 private:
  class Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace gossamer
