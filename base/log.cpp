#include "base/log.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include "base/text.hpp"

namespace gossamer {
namespace {

struct LevelRow {
  std::string_view name;
  LogLevel level;
  spdlog::level::level_enum sink_level;
};

constexpr std::array kLevels = {
    LevelRow{"debug", LogLevel::kDebug, spdlog::level::debug},
    LevelRow{"info", LogLevel::kInfo, spdlog::level::info},
    LevelRow{"warning", LogLevel::kWarning, spdlog::level::warn},
    LevelRow{"error", LogLevel::kError, spdlog::level::err},
    LevelRow{"off", LogLevel::kOff, spdlog::level::off},
};

}  // namespace

class Logger::Impl {
 public:
  explicit Impl(std::string_view tag)
      : logger(std::string(tag), std::make_shared<spdlog::sinks::stderr_color_sink_mt>()) {
    logger.set_pattern(tag.empty() ? "%H:%M:%S.%e %^%l%$  %v" : "%H:%M:%S.%e %^%l%$ [%n] %v");
    logger.flush_on(spdlog::level::debug);
  }
  /// Messages quote files.
  void write(spdlog::level::level_enum level, std::string_view message) const {
    if (logger.should_log(level)) logger.log(level, std::string_view(visible(message)));
  }
  mutable spdlog::logger logger;
};

std::vector<std::string> log_level_names() {
  std::vector<std::string> names;
  for (const LevelRow& row : kLevels) names.emplace_back(row.name);
  return names;
}

LogLevel log_level(std::string_view name) {
  const auto row = std::ranges::find(kLevels, name, &LevelRow::name);
  if (row == kLevels.end()) throw std::invalid_argument(concat("unknown log level ", name));
  return row->level;
}

Logger::Logger() = default;

Logger::Logger(LogLevel level, std::string_view tag) {
  auto impl = std::make_shared<Impl>(tag);
  impl->logger.set_level(std::ranges::find(kLevels, level, &LevelRow::level)->sink_level);
  impl_ = std::move(impl);
}

void Logger::debug(std::string_view message) const {
  if (impl_) impl_->write(spdlog::level::debug, message);
}
void Logger::info(std::string_view message) const {
  if (impl_) impl_->write(spdlog::level::info, message);
}
void Logger::warning(std::string_view message) const {
  if (impl_) impl_->write(spdlog::level::warn, message);
}
void Logger::error(std::string_view message) const {
  if (impl_) impl_->write(spdlog::level::err, message);
}

}  // namespace gossamer
