#include "base/log.hpp"

#include "test/base/thrown.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

std::string written(const Logger& logger) {
  testing::internal::CaptureStderr();
  logger.debug("one");
  logger.info("two");
  logger.warning("three");
  logger.error("four");
  return testing::internal::GetCapturedStderr();
}

/// The messages that a text contains, one letter for each of the four.
std::string messages_in(const std::string& text) {
  std::string found;
  for (const char* word : {"one", "two", "three", "four"}) {
    if (text.find(word) != std::string::npos) found += word + std::string(" ");
  }
  return found;
}

TEST(Log, LevelsHaveNames) {
  EXPECT_EQ(log_level_names(),
            (std::vector<std::string>{"debug", "info", "warning", "error", "off"}));
  EXPECT_EQ(log_level("debug"), LogLevel::kDebug);
  EXPECT_EQ(log_level("info"), LogLevel::kInfo);
  EXPECT_EQ(log_level("warning"), LogLevel::kWarning);
  EXPECT_EQ(log_level("error"), LogLevel::kError);
  EXPECT_EQ(log_level("off"), LogLevel::kOff);
  EXPECT_THROW((void)log_level("loud"), std::invalid_argument);
  EXPECT_THROW((void)log_level(""), std::invalid_argument);
}

TEST(Log, LevelsHideMilderMessages) {
  EXPECT_EQ(messages_in(written(Logger(LogLevel::kDebug, ""))), "one two three four ");
  EXPECT_EQ(messages_in(written(Logger(LogLevel::kInfo, ""))), "two three four ");
  EXPECT_EQ(messages_in(written(Logger(LogLevel::kWarning, ""))), "three four ");
  EXPECT_EQ(messages_in(written(Logger(LogLevel::kError, ""))), "four ");
  EXPECT_EQ(written(Logger(LogLevel::kOff, "")), "");
  EXPECT_EQ(written(Logger()), "");
}

TEST(Log, LinesNameTheirLevelAndRank) {
  const std::string tagged = written(Logger(LogLevel::kError, "rank 2"));
  EXPECT_CONTAINS(tagged, "error [rank 2] four\n");
  const std::string plain = written(Logger(LogLevel::kWarning, ""));
  EXPECT_CONTAINS(plain, "warning  three\n");
  EXPECT_EQ(plain.find('['), std::string::npos) << plain;
}

TEST(Log, WritesMessagesAsTheyAre) {
  testing::internal::CaptureStderr();
  Logger(LogLevel::kInfo, "").info("{} {0} %s %d {broken");
  EXPECT_CONTAINS(testing::internal::GetCapturedStderr(), "{} {0} %s %d {broken\n");
}

TEST(Log, ShowsWhatWouldCommandTheTerminal) {
  testing::internal::CaptureStderr();
  Logger(LogLevel::kInfo, "").info("a\x1b[2Jb");
  EXPECT_CONTAINS(testing::internal::GetCapturedStderr(), "a\\x1b[2Jb\n");
}

TEST(Log, LinesOfThreadsStayWhole) {
  constexpr int kThreads = 4;
  constexpr int kLines = 50;
  const std::string message(100, 'm');
  testing::internal::CaptureStderr();
  {
    const Logger shared(LogLevel::kInfo, "");
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&message, logger = shared] {
        for (int line = 0; line < kLines; ++line) logger.info(message);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), kThreads * kLines);
  std::size_t whole = 0;
  for (auto at = text.find("info  " + message + "\n"); at != std::string::npos;
       at = text.find("info  " + message + "\n", at + 1)) {
    ++whole;
  }
  EXPECT_EQ(whole, static_cast<std::size_t>(kThreads * kLines));
}

}  // namespace
}  // namespace gossamer
