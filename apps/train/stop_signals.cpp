#include "apps/train/stop_signals.hpp"

#include <chrono>
#include <ctime>

#include <pthread.h>

#include "base/thread.hpp"

namespace gossamer::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr long kTurn = 50'000'000;  // nanoseconds
// `timeout` and some launchers send a signal to the process and to its group, which is one request.
constexpr auto kOneRequest = std::chrono::seconds(1);

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    if (!is_ignored(signal)) sigaddset(&signals_, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals_, &blocked_before_);
  listener_ = start_thread<std::jthread>([this](const std::stop_token& stop) { listen(stop); });
}

StopSignals::~StopSignals() {
  listener_.request_stop();
  listener_.join();
  pthread_sigmask(SIG_SETMASK, &blocked_before_, nullptr);
}

void StopSignals::listen(const std::stop_token& stop) {
  constexpr timespec kWait{.tv_sec = 0, .tv_nsec = kTurn};
  Clock::time_point first{};
  while (!stop.stop_requested()) {
    const int signal = sigtimedwait(&signals_, nullptr, &kWait);
    if (signal <= 0) continue;
    int none = 0;
    if (caught_.compare_exchange_strong(none, signal)) {
      first = Clock::now();
      continue;
    }
    if (Clock::now() - first < kOneRequest) continue;
    // The second one does what it does in any program.
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, signal);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    raise(signal);
  }
}

}  // namespace gossamer::apps
