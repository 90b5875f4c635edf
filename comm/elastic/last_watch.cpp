#include "comm/elastic/last_watch.hpp"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::membership {

void LastWatch::arm(const std::string& why) {
  const std::lock_guard lock(mutex_);
  why_ = why;
  if (is_disarmed_ || thread_.joinable()) return;
  thread_ = std::thread([this] {
    std::unique_lock waiting(mutex_);
    if (changed_.wait_for(waiting, grace_, [this] { return is_disarmed_; })) return;
    end_(why_);
  });
}

bool LastWatch::is_armed() {
  const std::lock_guard lock(mutex_);
  return thread_.joinable();
}

void LastWatch::disarm() {
  std::thread ending;
  {
    const std::lock_guard lock(mutex_);
    is_disarmed_ = true;
    ending.swap(thread_);
  }
  changed_.notify_all();
  if (ending.joinable()) ending.join();
}

void end_process(const std::string& why) {
  const std::string text = concat("gossamer: ", why, "\n");
  static_cast<void>(std::fputs(text.c_str(), stderr));
  static_cast<void>(std::fflush(stderr));
  std::_Exit(static_cast<int>(ExitCode::kPeerLost));
}

}  // namespace gossamer::membership
