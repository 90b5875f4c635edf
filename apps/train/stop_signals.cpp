#include "apps/train/stop_signals.hpp"

#include <ctime>

#include <pthread.h>

#include "base/thread.hpp"

namespace gossamer::apps {
namespace {

constexpr long kTurn = 50'000'000;  // nanoseconds

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
  while (!stop.stop_requested()) {
    const int signal = sigtimedwait(&signals_, nullptr, &kWait);
    if (signal <= 0) continue;
    int none = 0;
    if (caught_.compare_exchange_strong(none, signal)) continue;
    // The second one does what it does in any program.
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, signal);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    raise(signal);
  }
}

}  // namespace gossamer::apps
