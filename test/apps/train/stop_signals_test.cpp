// Signals that end a run. Each test has a process of its own, in which no other threads run yet.

#include "apps/train/stop_signals.hpp"

#include "test/support/sanitized.hpp"

#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

namespace gossamer::apps {
namespace {

void wait_for_signal(const StopSignals& signals) {
  while (signals.caught() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(StopSignalsDeathTest, RememberTheFirst) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // Each starts the program anew, which takes seconds under a sanitizer.
    if (kSanitized && signal != SIGHUP) continue;
    EXPECT_EXIT(
        {
          // A shell that starts the tests in the background has them ignore SIGINT.
          std::signal(signal, SIG_DFL);
          const StopSignals signals;
          if (signals.caught() != 0) _exit(1);
          kill(getpid(), signal);
          wait_for_signal(signals);
          _exit(signals.caught() == signal ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
  }
}

TEST(StopSignalsDeathTest, EndTheProcessTheSecondTime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::signal(SIGINT, SIG_DFL);
        const StopSignals signals;
        kill(getpid(), SIGINT);
        wait_for_signal(signals);
        // Those of the first second count for nothing.
        for (int i = 0; i < 600; ++i) {
          kill(getpid(), SIGTERM);
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST(StopSignalsDeathTest, TakeTwoAtOnceForOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignals signals;
        // To the process and to its group, as `timeout` does.
        for (const int signal : {SIGTERM, SIGTERM, SIGHUP}) {
          kill(getpid(), signal);
          wait_for_signal(signals);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        _exit(signals.caught() == SIGTERM ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopSignalsDeathTest, LeaveAloneWhatIsIgnored) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::signal(SIGINT, SIG_IGN);
        const StopSignals signals;
        kill(getpid(), SIGINT);
        kill(getpid(), SIGTERM);
        wait_for_signal(signals);
        _exit(signals.caught() == SIGTERM ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gossamer::apps
